//! The part of every batch that a replica trains on.

use burn::{data::dataloader::batcher::Batcher, tensor::backend::Backend};
use lean_replicas::{Replicas, share};

/// Makes batches of this replica's share of the items.
///
/// A data loader of Burn gives it the items of a whole batch, in the order of its shuffling, which
/// is the same on all replicas that have the same seed. The shares of all replicas are the batch:
/// what one process would train on. If they are not equally large, the first ones have an item
/// more; each share counts the same in the mean of the gradients.
///
/// ```
/// # use burn::{backend::Flex, data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset}};
/// # struct AsTheyAre;
/// # impl Batcher<Flex, u32, Vec<u32>> for AsTheyAre {
/// #     fn batch(&self, items: Vec<u32>, _: &burn::backend::flex::FlexDevice) -> Vec<u32> { items }
/// # }
/// use burn_gradient_release_data_parallel::{Alone, Replicas, ShareBatcher};
///
/// let replicas = Replicas::new(|| Ok(Alone))?;
/// let loader = DataLoaderBuilder::<Flex, _, _>::new(ShareBatcher::new(AsTheyAre, &replicas))
///     .batch_size(8) // of all replicas together
///     .shuffle(42)
///     .build(InMemDataset::new((0..20).collect()));
/// let sizes: Vec<_> = loader.iter().map(|batch| batch.len()).collect();
/// assert_eq!(sizes, [8, 8, 4]);
/// # Ok::<_, burn_gradient_release_data_parallel::ReplicaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShareBatcher<T> {
    batcher: T,
    rank: usize,
    size: usize,
}

impl<T> ShareBatcher<T> {
    /// Gives this replica's share to `batcher`.
    pub fn new(batcher: T, replicas: &Replicas) -> Self {
        Self {
            batcher,
            rank: replicas.rank(),
            size: replicas.size(),
        }
    }
}

impl<B: Backend, I, O, T: Batcher<B, I, O>> Batcher<B, I, O> for ShareBatcher<T> {
    /// # Panics
    ///
    /// If there are fewer items than replicas: none may be left out, and every replica has to run
    /// backward.
    fn batch(&self, mut items: Vec<I>, device: &B::Device) -> O {
        let share = share(items.len(), self.rank, self.size);
        items.truncate(share.end);
        self.batcher.batch(items.split_off(share.start), device)
    }
}

//! The part of every batch that a replica trains on.

use burn::{data::dataloader::batcher::Batcher, tensor::backend::Backend};

use crate::Replicas;

/// Makes batches of this replica's share of the items.
///
/// A data loader of Burn gives it the items of a whole batch, in the order of its shuffling, which is the same on
/// all replicas that have the same seed. The shares of all replicas are the batch: what one process would
/// train on. If they are not equally large, the first ones have an item more; each share counts the same in
/// the mean of the gradients.
///
/// ```
/// # use burn::{backend::Flex, data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset}};
/// # struct AsTheyAre;
/// # impl Batcher<Flex, u32, Vec<u32>> for AsTheyAre {
/// #     fn batch(&self, items: Vec<u32>, _: &burn::backend::flex::FlexDevice) -> Vec<u32> { items }
/// # }
/// use burn_data_parallel::{Alone, Replicas, ShareBatcher};
///
/// let replicas = Replicas::new(|| Ok(Alone))?;
/// let loader = DataLoaderBuilder::<Flex, _, _>::new(ShareBatcher::new(AsTheyAre, &replicas))
///     .batch_size(8) // of all replicas together
///     .shuffle(42)
///     .build(InMemDataset::new((0..20).collect()));
/// let sizes: Vec<_> = loader.iter().map(|batch| batch.len()).collect();
/// assert_eq!(sizes, [8, 8, 4]);
/// # Ok::<_, burn_data_parallel::ReplicaError>(())
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
    /// If there are fewer items than replicas: none may be left out, and every replica has to run backward.
    fn batch(&self, mut items: Vec<I>, device: &B::Device) -> O {
        let Self { rank, size, .. } = *self;
        assert!(
            items.len() >= size,
            "a batch of {} items cannot be shared by {size} replicas: choose a batch size after which an \
             epoch leaves none, or at least {size} items",
            items.len()
        );
        let begin = share_begin(items.len(), rank, size);
        let end = share_begin(items.len(), rank + 1, size);
        items.truncate(end);
        self.batcher.batch(items.split_off(begin), device)
    }
}

/// Where the share of a rank begins.
fn share_begin(items: usize, rank: usize, size: usize) -> usize {
    items / size * rank + rank.min(items % size)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, flex::FlexDevice};

    use super::*;

    struct AsTheyAre;

    impl Batcher<Flex, usize, Vec<usize>> for AsTheyAre {
        fn batch(&self, items: Vec<usize>, _: &FlexDevice) -> Vec<usize> {
            items
        }
    }

    fn share(items: usize, rank: usize, size: usize) -> Vec<usize> {
        let batcher = ShareBatcher {
            batcher: AsTheyAre,
            rank,
            size,
        };
        batcher.batch((0..items).collect(), &FlexDevice)
    }

    #[test]
    fn the_shares_are_the_batch() {
        for size in 1..6 {
            for items in size..20 {
                let shares: Vec<_> = (0..size).map(|rank| share(items, rank, size)).collect();
                assert_eq!(shares.concat(), (0..items).collect::<Vec<_>>());
                assert!(
                    shares
                        .iter()
                        .all(|share| share.len() - items / size <= 1 && !share.is_empty())
                );
            }
        }
    }

    #[test]
    #[should_panic = "a batch of 2 items cannot be shared by 3 replicas"]
    fn no_replica_is_left_without_items() {
        share(2, 0, 3);
    }
}

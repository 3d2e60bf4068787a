//! The data of a resumed run, in the order of the uninterrupted one.

use std::sync::{Arc, Once};

use burn::{
    data::dataloader::{DataLoader, DataLoaderIterator},
    tensor::backend::Backend,
};

/// A data loader of Burn as it is at the beginning of an epoch after the first.
///
/// Burn's loader shuffles anew for every epoch, and starts its random numbers anew with every run:
/// a run resumed at epoch 4 would see the order of epoch 1. This one lets the loader shuffle for
/// the epochs that are done, and make one batch of each: a batcher that counts its batches should
/// know of these. With more than one worker Burn's order is not the same in any two runs.
///
/// ```
/// # use burn::{backend::Flex, data::{dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset}};
/// # struct AsTheyAre;
/// # impl Batcher<Flex, u32, Vec<u32>> for AsTheyAre {
/// #     fn batch(&self, items: Vec<u32>, _: &burn::backend::flex::FlexDevice) -> Vec<u32> { items }
/// # }
/// use burn_gradient_release_train::resume::ResumedDataLoader;
///
/// let loader = || {
///     let dataset = InMemDataset::new((0..100).collect());
///     DataLoaderBuilder::<Flex, _, _>::new(AsTheyAre).batch_size(10).shuffle(42).build(dataset)
/// };
///
/// let whole = loader();
/// let [_first, _second, third] = [(); 3].map(|()| whole.iter().flatten().collect::<Vec<_>>());
///
/// let resumed = ResumedDataLoader::new(loader(), 3);
/// assert_eq!(resumed.iter().flatten().collect::<Vec<_>>(), third);
/// ```
pub struct ResumedDataLoader<B: Backend, O> {
    loader: Arc<dyn DataLoader<B, O>>,
    first_epoch: usize,
    skipped: Once,
}

impl<B: Backend, O: 'static> ResumedDataLoader<B, O> {
    /// Begins with this epoch, counted from 1.
    #[expect(
        clippy::new_ret_no_self,
        reason = "Burn hands data loaders around as trait objects"
    )]
    pub fn new(loader: Arc<dyn DataLoader<B, O>>, first_epoch: usize) -> Arc<dyn DataLoader<B, O>> {
        Arc::new(Self {
            loader,
            first_epoch,
            skipped: Once::new(),
        })
    }

    fn around(&self, loader: Arc<dyn DataLoader<B, O>>) -> Arc<dyn DataLoader<B, O>> {
        Self::new(loader, self.first_epoch)
    }
}

impl<B: Backend, O: 'static> DataLoader<B, O> for ResumedDataLoader<B, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        self.skipped.call_once(|| {
            for _done in 1..self.first_epoch {
                // A worker shuffles on its own thread: with the first batch it has.
                self.loader.iter().next();
            }
        });
        self.loader.iter()
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, O>> {
        self.around(self.loader.to_device(device))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, O>> {
        self.around(self.loader.slice(start, end))
    }
}

impl<B: Backend, O> std::fmt::Debug for ResumedDataLoader<B, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResumedDataLoader")
            .field("first_epoch", &self.first_epoch)
            .finish_non_exhaustive()
    }
}

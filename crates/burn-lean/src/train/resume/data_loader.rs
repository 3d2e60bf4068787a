//! The data of a resumed run, in the order of the uninterrupted one.

use std::sync::{Arc, Once};

use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use burn::tensor::Device;

/// A data loader of Burn in its state at the beginning of a later epoch.
///
/// Burn's loader shuffles anew for every epoch, and starts its random numbers anew with every run:
/// a run resumed at epoch 4 would see the order of epoch 1. This one lets the loader shuffle for
/// the epochs that are done, and makes no batch of them; workers may make some, which are dropped.
/// With more than one worker Burn's order is not the same in any two runs.
///
/// ```
/// # use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
/// # use burn::data::dataset::InMemDataset;
/// # use burn::tensor::Device;
/// # struct AsTheyAre;
/// # impl Batcher<u32, Vec<u32>> for AsTheyAre {
/// #     fn batch(&self, items: Vec<u32>, _: &Device) -> Vec<u32> { items }
/// # }
/// use burn_lean::train::resume::ResumedDataLoader;
///
/// let loader = || {
///     let dataset = InMemDataset::new((0..100).collect());
///     DataLoaderBuilder::new(AsTheyAre).batch_size(10).shuffle(42).build(dataset)
/// };
/// let epoch = |loader: &dyn DataLoader<Vec<u32>>| -> Vec<u32> {
///     loader.iter().flat_map(Result::unwrap).collect()
/// };
///
/// let whole = loader();
/// let [_first, _second, third] = [(); 3].map(|()| epoch(&*whole));
///
/// let resumed = ResumedDataLoader::new(loader(), 3);
/// assert_eq!(epoch(&*resumed), third);
/// ```
pub struct ResumedDataLoader<O> {
    loader: Arc<dyn DataLoader<O>>,
    first_epoch: usize,
    skipped: Once,
}

impl<O: 'static> ResumedDataLoader<O> {
    /// Begins with this epoch, counted from 1.
    #[expect(
        clippy::new_ret_no_self,
        reason = "Burn hands data loaders around as trait objects"
    )]
    pub fn new(loader: Arc<dyn DataLoader<O>>, first_epoch: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self {
            loader,
            first_epoch,
            skipped: Once::new(),
        })
    }
}

impl<O: 'static> DataLoader<O> for ResumedDataLoader<O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        self.skipped.call_once(|| {
            for _done in 1..self.first_epoch {
                // A worker shuffles on its own thread, for one epoch after the other.
                drop(self.loader.iter());
            }
        });
        self.loader.iter()
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Self::new(self.loader.to_device(device), self.first_epoch)
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Self::new(self.loader.slice(start, end), self.first_epoch)
    }
}

impl<O> std::fmt::Debug for ResumedDataLoader<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResumedDataLoader")
            .field("first_epoch", &self.first_epoch)
            .finish_non_exhaustive()
    }
}

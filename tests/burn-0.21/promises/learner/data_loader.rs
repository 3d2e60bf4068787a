//! The order of the batches of a resumed run.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn_gradient_release_train::resume::ResumedDataLoader;

use crate::harness::prelude::*;

/// Batches that are the numbers of their items.
struct AsTheyAre;

impl<B: Backend> Batcher<B, u32, Vec<u32>> for AsTheyAre {
    fn batch(&self, items: Vec<u32>, _: &B::Device) -> Vec<u32> {
        items
    }
}

const EPOCHS: usize = 6;

fn loader(workers: usize) -> Arc<dyn DataLoader<Flex, Vec<u32>>> {
    DataLoaderBuilder::new(AsTheyAre)
        .batch_size(4)
        .shuffle(42)
        .num_workers(workers)
        .build(InMemDataset::new((0..23).collect()))
}

fn epoch(loader: &dyn DataLoader<Flex, Vec<u32>>) -> Vec<Vec<u32>> {
    loader.iter().collect()
}

/// Whichever epoch a run is resumed at, on whichever device: that epoch's order, and the next
/// ones'.
fn resumes(workers: usize) {
    let whole = loader(workers).to_device(&Default::default());
    let whole: Vec<_> = (0..EPOCHS).map(|_| epoch(&*whole)).collect();
    assert!(
        whole.windows(2).all(|pair| pair[0] != pair[1]),
        "shuffled anew in every epoch"
    );
    for first in 1..=EPOCHS {
        let resumed = ResumedDataLoader::new(loader(workers), first);
        let resumed = resumed.to_device(&Default::default());
        assert_eq!(resumed.num_items(), 23);
        for expected in &whole[first - 1..] {
            assert_eq!(epoch(&*resumed), *expected, "resumed at epoch {first}");
        }
    }
}

/// Burn shuffles on the worker's thread, so that a race would show in some runs only. (With several
/// workers the order of the batches is another in every run, resumed or not.)
#[test]
fn an_epoch_has_the_order_of_the_uninterrupted_run() {
    resumes(0);
    for _ in 0..50 {
        resumes(1);
    }
}

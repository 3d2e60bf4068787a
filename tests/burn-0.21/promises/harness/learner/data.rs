//! Batches, and a place to note the weights that each training step found.

use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;

use crate::harness::prelude::*;

/// Called at each step with the number of steps before it; always with 0 where no weights are kept.
pub(crate) type OnStep = Arc<dyn Fn(usize) + Send + Sync>;

/// The weights that each training step found, shared by all batches of a run.
#[derive(Clone)]
pub(crate) struct WeightLog {
    weights: Arc<Mutex<Vec<Weights>>>,
    on_step: OnStep,
    keep: bool,
}

impl WeightLog {
    pub(super) fn new(on_step: OnStep, keep: bool) -> Self {
        Self {
            weights: Arc::default(),
            on_step,
            keep,
        }
    }

    /// Keeps nothing.
    pub(crate) fn none() -> Self {
        Self::new(Arc::new(|_| ()), false)
    }

    pub(super) fn take(&self) -> Vec<Weights> {
        std::mem::take(&mut self.weights.lock().expect("no step panicked while noting"))
    }
}

/// A batch: everything about its data follows from the seed.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) seed: u64,
    pub(crate) size: Size,
    log: WeightLog,
}

impl Batch {
    /// Notes the weights the model has now. Called first thing in every step.
    pub(super) fn note<B: Backend, M: Module<B>>(&self, model: &M) {
        if !self.log.keep {
            return (self.log.on_step)(0);
        }
        let weights = Weights::of::<B, M>(model);
        let mut log = self.log.weights.lock().expect("not poisoned");
        log.push(weights);
        let before = log.len() - 1;
        drop(log);
        (self.log.on_step)(before);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Makes one seed of the items of a batch, in their order.
struct Seeds {
    size: Size,
    log: WeightLog,
}

impl<B: Backend> Batcher<B, u64, Batch> for Seeds {
    fn batch(&self, items: Vec<u64>, _: &B::Device) -> Batch {
        Batch {
            seed: items.iter().fold(0, |seed, item| 100 * seed + item),
            size: self.size,
            log: self.log.clone(),
        }
    }
}

/// Items of the data set in a batch.
const BATCH: usize = 2;

/// Burn's own loader over a data set that fills so many batches.
pub(super) fn loader<B: Backend>(
    batches: usize,
    shuffle: Option<u64>,
    size: Size,
    log: WeightLog,
) -> Arc<dyn DataLoader<B, Batch>> {
    let items = (1..=(BATCH * batches) as u64).collect();
    let builder = DataLoaderBuilder::new(Seeds { size, log }).batch_size(BATCH);
    match shuffle {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    }
    .build(InMemDataset::new(items))
}

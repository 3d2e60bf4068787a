//! How to train.

use std::sync::Arc;
use std::time::Duration;

use burn::data::dataloader::DataLoader;
use burn::record::{BinFileRecorder, FullPrecisionSettings};
use burn::tensor::backend::Backend;
use burn::train::checkpoint::{CheckpointingStrategy, KeepLastNCheckpoints};
use burn::train::{Interrupter, MetricEarlyStoppingStrategy};
use burn_gradient_release_train::StepMonitor;

use super::batch::loader;
use super::{Batch, Directory, OnStep, WeightLog};
use crate::harness::models::Size;

/// The recorder of runs that do not say otherwise. Full precision: a resume is exact.
pub(crate) type Bin = BinFileRecorder<FullPrecisionSettings>;

/// How to train: the same for every mode.
#[derive(Clone)]
pub(crate) struct Training<F = Bin> {
    pub(crate) directory: Directory,
    pub(crate) size: Size,
    pub(crate) epochs: usize,
    /// Batches in an epoch, for training and for validation.
    pub(crate) batches: usize,
    pub(crate) valid_batches: usize,
    pub(crate) shuffle: Option<u64>,
    pub(crate) accumulation: Option<usize>,
    /// Saves a checkpoint after each epoch, if there is one.
    pub(crate) recorder: Option<F>,
    /// Policy for the checkpoints to keep.
    pub(crate) keep: fn() -> Box<dyn CheckpointingStrategy>,
    /// The epoch to resume from.
    pub(crate) checkpoint: Option<usize>,
    /// Whether a resumed run skips the shuffles of the epochs before.
    pub(crate) skips_epochs: bool,
    pub(crate) early_stopping: Option<MetricEarlyStoppingStrategy>,
    /// Keeps the metrics in memory instead of in log files. Burn reads its log files while they are
    /// being written; what is in memory is whole.
    pub(crate) metrics_in_memory: bool,
    /// Waits for the metrics of an epoch before a strategy of Burn is asked about it.
    pub(crate) settles: bool,
    /// How long the renderer takes for an item of validation.
    pub(crate) rendering: Duration,
    pub(crate) interrupter: Interrupter,
    pub(crate) summary: bool,
    pub(crate) monitor: StepMonitor,
    pub(crate) on_step: OnStep,
    pub(crate) on_valid_step: OnStep,
    /// Keeps the weights of every step, which takes memory.
    pub(crate) keep_weights: bool,
}

impl Training {
    /// Three epochs in a directory of its own, no checkpoints.
    pub(crate) fn new() -> Self {
        Self {
            directory: Directory::temporary(),
            size: Size::Small,
            epochs: 3,
            batches: 7,
            valid_batches: 2,
            shuffle: None,
            accumulation: None,
            recorder: None,
            keep: || Box::new(KeepLastNCheckpoints::new(2)),
            checkpoint: None,
            skips_epochs: true,
            early_stopping: None,
            metrics_in_memory: false,
            settles: false,
            rendering: Duration::ZERO,
            interrupter: Interrupter::new(),
            summary: false,
            monitor: StepMonitor::new(),
            on_step: Arc::new(|_| ()),
            on_valid_step: Arc::new(|_| ()),
            keep_weights: true,
        }
    }
}

impl<F> Training<F> {
    /// Saves checkpoints with this recorder.
    pub(crate) fn saving_with<G>(self, recorder: G) -> Training<G> {
        Training {
            directory: self.directory,
            size: self.size,
            epochs: self.epochs,
            batches: self.batches,
            valid_batches: self.valid_batches,
            shuffle: self.shuffle,
            accumulation: self.accumulation,
            recorder: Some(recorder),
            keep: self.keep,
            checkpoint: self.checkpoint,
            skips_epochs: self.skips_epochs,
            early_stopping: self.early_stopping,
            metrics_in_memory: self.metrics_in_memory,
            settles: self.settles,
            rendering: self.rendering,
            interrupter: self.interrupter,
            summary: self.summary,
            monitor: self.monitor,
            on_step: self.on_step,
            on_valid_step: self.on_valid_step,
            keep_weights: self.keep_weights,
        }
    }

    /// The training data.
    pub(crate) fn loader<B: Backend>(&self, log: &WeightLog) -> Arc<dyn DataLoader<B, Batch>> {
        loader(self.batches, self.shuffle, self.size, log.clone())
    }

    /// The validation data, on whose steps no weights are kept.
    pub(crate) fn valid_loader<B: Backend>(&self) -> Arc<dyn DataLoader<B, Batch>> {
        let log = WeightLog::new(self.on_valid_step.clone(), false);
        loader(self.valid_batches, None, self.size, log)
    }
}

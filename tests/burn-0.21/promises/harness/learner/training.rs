//! How to train.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use burn::data::dataloader::DataLoader;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::record::{BinFileRecorder, FullPrecisionSettings};
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy, KeepLastNCheckpoints};
use burn::train::metric::store::EventStoreClient;
use burn::train::{EarlyStoppingStrategy, Interrupter, MetricEarlyStoppingStrategy};
use burn_gradient_release_train::StepMonitor;
use tempfile::TempDir;

use super::data::loader;
use super::{Batch, OnStep, Renderer, WeightLog};
use crate::harness::prelude::*;

/// The recorder of runs that do not say otherwise. Full precision: a resume is exact.
pub(crate) type Bin = BinFileRecorder<FullPrecisionSettings>;

/// Any of Burn's schedulers that are most used, in one type.
pub(crate) type Rates = ComposedLrScheduler;

/// Rates that are different at every step.
pub(crate) fn rates() -> Rates {
    cosine(0.05, 0.001)
}

/// The same rate at every step.
pub(crate) fn constant(rate: f64) -> Rates {
    cosine(rate, rate)
}

fn cosine(first: f64, least: f64) -> Rates {
    let config = CosineAnnealingLrSchedulerConfig::new(first, 5).with_min_lr(least);
    let config = ComposedLrSchedulerConfig::new().cosine(config);
    config.init().expect("the rates are in range")
}

/// How to train: the same for every mode.
#[derive(Clone)]
pub(crate) struct Training {
    pub(crate) directory: Directory,
    pub(crate) size: Size,
    pub(crate) epochs: usize,
    /// Batches in an epoch, for training and for validation.
    pub(crate) batches: usize,
    pub(crate) valid_batches: usize,
    pub(crate) shuffle: Option<u64>,
    pub(crate) rates: Rates,
    pub(crate) optim: Hooked,
    /// The largest norm of all gradients, which release clips to in two passes.
    pub(crate) max_norm: Option<f64>,
    pub(crate) recompute: Recompute,
    pub(crate) accumulation: Option<usize>,
    /// Saves a checkpoint after each epoch.
    pub(crate) saves: bool,
    /// Policy for the checkpoints to keep.
    pub(crate) keep: fn() -> Box<dyn CheckpointingStrategy>,
    /// The epoch to resume from.
    pub(crate) checkpoint: Option<usize>,
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
            rates: rates(),
            optim: Hooked::new(),
            max_norm: None,
            recompute: Recompute::None,
            accumulation: None,
            saves: false,
            keep: || Box::new(KeepLastNCheckpoints::new(2)),
            checkpoint: None,
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

    /// With a checkpoint after each epoch.
    pub(crate) fn saving() -> Self {
        Self {
            saves: true,
            ..Self::new()
        }
    }

    /// With the gradients of so many batches in a step.
    pub(crate) fn accumulating(self, batches: impl Into<Option<usize>>) -> Self {
        Self {
            accumulation: batches.into(),
            ..self
        }
    }

    /// For runs that are refused: nobody is left writing to a log whose folder is gone.
    pub(crate) fn unlogged() -> Self {
        Self {
            metrics_in_memory: true,
            ..Self::new()
        }
    }

    /// This epoch alone, from the checkpoint of the one before.
    pub(crate) fn only_epoch(&self, epoch: usize) -> Self {
        Self {
            epochs: epoch,
            checkpoint: (epoch > 1).then(|| epoch - 1),
            ..self.clone()
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

    /// A strategy of Burn, asked only when the epoch's metrics are complete, where that is wanted.
    pub(super) fn settled<S>(&self, strategy: S, renderer: &Renderer) -> Settled<S> {
        Settled {
            strategy,
            waits: self.settles,
            renderer: renderer.clone(),
            valid_batches: self.valid_batches,
            epochs_before: self.checkpoint.unwrap_or(0),
        }
    }
}

/// A strategy of Burn that waits first.
///
/// Burn asks its event store about an epoch whose last items its metrics thread may not have
/// handled yet, in stock training too: without waiting, two stock runs can decide differently.
#[derive(Clone)]
pub(super) struct Settled<S> {
    strategy: S,
    waits: bool,
    renderer: Renderer,
    valid_batches: usize,
    epochs_before: usize,
}

impl<S> Settled<S> {
    fn wait(&self, epoch: usize) {
        if self.waits {
            let epochs = epoch - self.epochs_before;
            self.renderer.wait_for_valid(epochs * self.valid_batches);
        }
    }
}

impl EarlyStoppingStrategy for Settled<MetricEarlyStoppingStrategy> {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        self.wait(epoch);
        self.strategy.should_stop(epoch, store)
    }
}

impl<S: CheckpointingStrategy> CheckpointingStrategy for Settled<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        self.wait(epoch);
        self.strategy.checkpointing(epoch, store)
    }
}

/// The folder of a run's checkpoints and logs; a temporary one lives as long as any run in it.
#[derive(Clone)]
pub(crate) struct Directory {
    path: PathBuf,
    _temporary: Option<Arc<TempDir>>,
}

impl Directory {
    /// A new one.
    pub(crate) fn temporary() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        Self {
            path: temporary.path().to_path_buf(),
            _temporary: Some(Arc::new(temporary)),
        }
    }

    /// One that another process looks after.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            _temporary: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A checkpoint's file.
    pub(crate) fn checkpoint(&self, file: &str) -> PathBuf {
        self.path.join("checkpoint").join(file)
    }

    /// The names of the checkpoints' files, sorted.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path.join("checkpoint")).expect("checkpoints exist");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Log entries of a training metric in an epoch.
    pub(crate) fn logged(&self, epoch: usize, metric: &str) -> Vec<String> {
        let metric = metric.replace(' ', "_");
        let file = self.path.join(format!("train/epoch-{epoch}/{metric}.log"));
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.lines().map(str::to_string).collect()
    }
}

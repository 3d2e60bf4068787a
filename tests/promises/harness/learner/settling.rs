//! Strategies of Burn that are asked about an epoch once its metrics are complete.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;
use burn::train::{EarlyStoppingStrategy, MetricEarlyStoppingStrategy};

use super::{Renderer, Training};

/// Burn asks its event store about an epoch whose last items its metrics thread may not have
/// handled yet, in stock training too: without waiting, two stock runs can decide differently.
#[derive(Clone)]
pub(super) struct Settling {
    waits: bool,
    renderer: Renderer,
    valid_batches: usize,
    /// Epochs of earlier runs.
    epochs_before: usize,
}

impl Settling {
    pub(super) fn new<F>(training: &Training<F>, renderer: &Renderer) -> Self {
        Self {
            waits: training.settles,
            renderer: renderer.clone(),
            valid_batches: training.valid_batches,
            epochs_before: training.checkpoint.unwrap_or(0),
        }
    }

    /// The strategy, asked only when the epoch's metrics are complete, where that is wanted.
    pub(super) fn strategy<S>(&self, strategy: S) -> Settled<S> {
        Settled {
            settling: self.clone(),
            strategy,
        }
    }

    fn wait(&self, epoch: usize) {
        if self.waits {
            let epochs = epoch - self.epochs_before;
            self.renderer.wait_for_valid(epochs * self.valid_batches);
        }
    }
}

/// A strategy of Burn that waits first.
#[derive(Clone)]
pub(super) struct Settled<S> {
    settling: Settling,
    strategy: S,
}

impl EarlyStoppingStrategy for Settled<MetricEarlyStoppingStrategy> {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        self.settling.wait(epoch);
        self.strategy.should_stop(epoch, store)
    }
}

impl<S: CheckpointingStrategy> CheckpointingStrategy for Settled<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        self.settling.wait(epoch);
        self.strategy.checkpointing(epoch, store)
    }
}

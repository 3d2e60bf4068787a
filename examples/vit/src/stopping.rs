//! Ends a run before its last epoch, and selects the checkpoints to keep.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy, KeepLastNCheckpoints};
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::{EarlyStoppingStrategy, Interrupter};
use burn_gradient_release_train::INTERRUPTED_ELSEWHERE;

/// Burn's reason for the interruption by Ctrl-C.
pub const CTRL_C: &str = "Ctrl-C";

/// Burn's reason for the interruption by `--stop-after`.
pub const STOP_AFTER: &str = "--stop-after";

/// Burn's reason for the interruption by its terminal UI.
const TUI: &str = "Stopping training from user input.";

/// The name of Burn's loss metric.
pub const LOSS: &str = "Loss";

/// Whether the user requested the interruption; any other reason is an error.
pub fn was_asked_for(reason: &str) -> bool {
    is_ctrl_c(reason) || [STOP_AFTER, TUI].contains(&reason)
}

/// Whether it was Ctrl-C, in this process or in another that trains with it.
pub fn is_ctrl_c(reason: &str) -> bool {
    [CTRL_C, INTERRUPTED_ELSEWHERE].contains(&reason)
}

/// Interrupts a run whose loss is not finite.
pub fn interrupt_if_diverged(interrupter: &Interrupter, loss: f64, epoch: usize) {
    if !loss.is_finite() && !interrupter.should_stop() {
        let reason = format!("the loss is {loss} in epoch {epoch}: try a smaller --lr");
        interrupter.stop(Some(&reason));
    }
}

/// Keeps the newest checkpoints of complete epochs. Burn would also save an epoch whose validation was
/// interrupted.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct CompleteEpochs {
    // The files of a checkpoint are written one by one: with a single checkpoint, the model of the last
    // epoch could be deleted before the optimizer of the next one is written.
    newest: KeepLastNCheckpoints,
    interrupter: Interrupter,
}

impl CompleteEpochs {
    /// Keeps two checkpoints.
    pub fn new(interrupter: Interrupter) -> Self {
        Self {
            newest: KeepLastNCheckpoints::new(2),
            interrupter,
        }
    }
}

impl CheckpointingStrategy for CompleteEpochs {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        // `MetricLog` checks the loss too, but may lag behind; this call waits for the metric.
        if let Some(loss) = store.find_metric(LOSS, epoch, Aggregate::Mean, &Split::Train) {
            interrupt_if_diverged(&self.interrupter, loss, epoch);
        }
        if self.interrupter.should_stop() {
            return Vec::new();
        }
        self.newest.checkpointing(epoch, store)
    }
}

/// Early stopping: ends a run after this many epochs without a better validation loss.
///
/// Burn's `MetricEarlyStoppingStrategy` keeps its best epoch in memory, where a resumed run does not find
/// it. `Patience` reads the logged losses of all epochs.
#[derive(Clone, Copy, Debug)]
pub struct Patience(pub usize);

impl Patience {
    /// Whether the last of these epochs is that many after the best one.
    pub fn is_exhausted(self, losses: impl IntoIterator<Item = (usize, f64)>) -> bool {
        let mut best: Option<(usize, f64)> = None;
        let mut last = 0;
        for (epoch, loss) in losses {
            last = epoch;
            if best.is_none_or(|(_, best)| loss < best) {
                best = Some((epoch, loss));
            }
        }
        best.is_some_and(|(epoch, _)| last - epoch >= self.0)
    }
}

impl EarlyStoppingStrategy for Patience {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let loss = |epoch| store.find_metric(LOSS, epoch, Aggregate::Mean, &Split::Valid);
        self.is_exhausted((1..=epoch).filter_map(|epoch| Some((epoch, loss(epoch)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(losses: &[f64]) -> bool {
        Patience(2).is_exhausted((1..).zip(losses.iter().copied()))
    }

    #[test]
    fn patience_ends_so_many_epochs_after_the_best() {
        assert!(!after(&[]));
        assert!(!after(&[3.0]));
        assert!(!after(&[3.0, 4.0]));
        assert!(after(&[3.0, 4.0, 3.0]));
        assert!(!after(&[3.0, 4.0, 2.0, 5.0]));
        assert!(after(&[3.0, 4.0, 2.0, 5.0, f64::NAN]));
    }

    #[test]
    fn only_a_divergence_interrupts() {
        let interrupter = Interrupter::new();
        interrupt_if_diverged(&interrupter, 2.5, 1);
        assert!(!interrupter.should_stop());
        interrupt_if_diverged(&interrupter, f64::NAN, 7);
        interrupt_if_diverged(&interrupter, f64::NAN, 8);
        let reason = interrupter.get_message().unwrap();
        assert_eq!(reason, "the loss is NaN in epoch 7: try a smaller --lr");
        assert!(!was_asked_for(&reason));
    }
}

//! When a run ends before its last epoch, and what is kept then.

use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy, KeepLastNCheckpoints};
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::{EarlyStoppingStrategy, Interrupter};

/// Why Ctrl-C interrupts.
pub const CTRL_C: &str = "Ctrl-C";

/// Why `--stop-after` interrupts.
pub const STOP_AFTER: &str = "--stop-after";

/// Why Burn's terminal UI interrupts.
const TUI: &str = "Stopping training from user input.";

/// The name of Burn's loss metric.
pub const LOSS: &str = "Loss";

/// Whether somebody asked for the interruption; what else interrupts is an error.
pub fn was_asked_for(reason: &str) -> bool {
    [CTRL_C, STOP_AFTER, TUI].contains(&reason)
}

/// Interrupts a run whose loss is no number any more.
pub fn interrupt_if_diverged(interrupter: &Interrupter, loss: f64, epoch: usize) {
    if !loss.is_finite() && !interrupter.should_stop() {
        let reason = format!("the loss is {loss} in epoch {epoch}: try a smaller --lr");
        interrupter.stop(Some(&reason));
    }
}

/// Keeps the newest checkpoints, and none of an epoch that was interrupted: Burn also saves one
/// whose validation was cut short.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct WholeEpochs {
    // The files of an epoch are written side by side: with one checkpoint only, the model of the
    // last epoch could be gone before the optimizer of the next is there.
    newest: KeepLastNCheckpoints,
    interrupter: Interrupter,
}

impl WholeEpochs {
    /// Keeps two checkpoints.
    pub fn new(interrupter: Interrupter) -> Self {
        Self {
            newest: KeepLastNCheckpoints::new(2),
            interrupter,
        }
    }
}

impl CheckpointingStrategy for WholeEpochs {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        // The log that looks out for it may lag behind; the answer to this does not.
        if let Some(loss) = store.find_metric(LOSS, epoch, Aggregate::Mean, &Split::Train) {
            interrupt_if_diverged(&self.interrupter, loss, epoch);
        }
        if self.interrupter.should_stop() {
            return Vec::new();
        }
        self.newest.checkpointing(epoch, store)
    }
}

/// Ends a run after so many epochs without a better validation loss.
///
/// Burn's `MetricEarlyStoppingStrategy` has its best epoch in memory, and a resumed run would begin
/// without it: this one goes through the logged losses of all epochs.
#[derive(Clone, Copy, Debug)]
pub struct Patience(pub usize);

impl Patience {
    /// Whether the last of these epochs is so many after the best one.
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

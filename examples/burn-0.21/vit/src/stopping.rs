//! Ends a run before its last epoch, and selects the checkpoints to keep.

use anyhow::anyhow;
use burn::train::Interrupter;
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn_gradient_release_train::INTERRUPTED_ELSEWHERE;
use lean_run_folder::{CannotWrite, Checkpoints};

/// Burn's reason for the interruption by Ctrl-C.
pub const CTRL_C: &str = "Ctrl-C";

/// Burn's reason for the interruption by `--stop-after`.
pub const STOP_AFTER: &str = "--stop-after";

/// What the reason begins with if metrics cannot be logged.
pub const CANNOT_LOG: &str = "cannot write the log ";

/// What the reason begins with if an old checkpoint cannot be removed.
const CANNOT_REMOVE: &str = "cannot remove ";

/// The checkpoints that are kept.
const KEPT: usize = 2;

/// The name of Burn's loss metric.
pub const LOSS: &str = "Loss";

/// Interrupts a run that was not interrupted before: Burn's interrupter would forget the first
/// reason, such as a checkpoint that could not be saved.
pub fn stop(interrupter: &Interrupter, reason: &str) {
    if !interrupter.should_stop() {
        interrupter.stop(Some(reason));
    }
}

/// Whether the user requested the interruption; any other reason is an error.
pub fn was_asked_for(reason: &str) -> bool {
    [CTRL_C, STOP_AFTER].contains(&wherever(reason))
}

/// Whether it was Ctrl-C, in this process or in another that trains with it.
pub fn is_ctrl_c(reason: &str) -> bool {
    wherever(reason) == CTRL_C
}

/// Whether it was in another process that trains with this one.
pub fn is_elsewhere(reason: &str) -> bool {
    wherever(reason) != reason
}

/// The reason, be it of this process or of another.
fn wherever(reason: &str) -> &str {
    let elsewhere = reason.strip_prefix(INTERRUPTED_ELSEWHERE);
    elsewhere.map_or(reason, |reason| reason.trim_start_matches(": "))
}

/// The error of an interruption that nobody has asked for.
pub fn error(reason: &str) -> anyhow::Error {
    // What Burn's checkpointer makes of the error of its recorder.
    let of_recorder = wherever(reason).strip_prefix("Recorder error: `Unknown(\"");
    let saving = of_recorder.and_then(|text| text.strip_suffix("\")`"));
    let text = saving.unwrap_or(wherever(reason));
    let about_writing = ["cannot save ", CANNOT_LOG, CANNOT_REMOVE];
    match about_writing.iter().any(|begin| text.starts_with(begin)) {
        true => CannotWrite(text.into()).into(),
        false => anyhow!("{text}"),
    }
}

/// Interrupts a run whose loss is not finite.
fn interrupt_if_diverged(interrupter: &Interrupter, loss: f64, epoch: usize) {
    if !loss.is_finite() {
        let reason = format!("the loss is {loss} in epoch {epoch}: try a smaller --lr");
        stop(interrupter, &reason);
    }
}

/// Keeps the two newest checkpoints of complete epochs. Burn would also save an epoch whose
/// validation was interrupted.
///
/// It removes the oldest one itself, before the next one is saved. Burn does so afterwards, even if
/// that one could not be saved: its error would take the place of the first, without a file's name.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct CompleteEpochs {
    checkpoints: Checkpoints,
    interrupter: Interrupter,
}

impl CompleteEpochs {
    /// Keeps two of these checkpoints. The last one has to be on the disk before the next
    /// one is saved, as it is with a `BlockingCheckpointingStrategy`.
    pub fn new(checkpoints: Checkpoints, interrupter: Interrupter) -> Self {
        Self {
            checkpoints,
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
        if let Some(loss) = store.find_metric(LOSS, epoch, Aggregate::Mean, &Split::Train) {
            interrupt_if_diverged(&self.interrupter, loss, epoch);
        }
        if self.interrupter.should_stop() {
            return Vec::new();
        }
        // The one of the last epoch stays: a single checkpoint could be lost while it is replaced.
        if let Err(error) = self.checkpoints.remove(epoch.saturating_sub(KEPT)) {
            stop(&self.interrupter, &format!("{CANNOT_REMOVE}{error}"));
            return Vec::new();
        }
        vec![CheckpointingAction::Save]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_same_in_another_process() {
        let elsewhere = format!("{INTERRUPTED_ELSEWHERE}: {CTRL_C}");
        assert!(is_elsewhere(&elsewhere) && is_ctrl_c(&elsewhere) && was_asked_for(&elsewhere));
        assert!(is_ctrl_c(CTRL_C) && !is_elsewhere(CTRL_C));
        let elsewhere = format!("{INTERRUPTED_ELSEWHERE}: {STOP_AFTER}");
        assert!(was_asked_for(&elsewhere) && !is_ctrl_c(&elsewhere));
        let failed = "Recorder error: `Unknown(\"cannot save a/model-1.mpk: no room\")`";
        let elsewhere = format!("{INTERRUPTED_ELSEWHERE}: {failed}");
        for reason in [failed, &elsewhere] {
            assert!(!was_asked_for(reason));
            let error = error(reason);
            let text = CannotWrite("cannot save a/model-1.mpk: no room".into());
            assert_eq!(error.downcast_ref(), Some(&text));
        }
        assert!(!error("the loss is NaN").is::<CannotWrite>());
    }

    #[test]
    fn the_first_reason_stays() {
        let interrupter = Interrupter::new();
        let failed = "Recorder error: `Unknown(\"cannot save a/model-1.mpk: no room\")`";
        interrupter.stop(Some(failed));
        stop(&interrupter, CTRL_C);
        interrupt_if_diverged(&interrupter, f64::NAN, 1);
        assert_eq!(interrupter.get_message().as_deref(), Some(failed));
    }
}

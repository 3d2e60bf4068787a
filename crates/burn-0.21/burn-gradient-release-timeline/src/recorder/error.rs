//! Errors of a recording.

use crate::snapshot::SnapshotError;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Another recording of this process is under way.
    #[error(
        "a recording is under way already: a process has one at a time; finish the other first"
    )]
    UnderWay,
    /// The range of steps is empty.
    #[error("no step to record: the range of steps is empty")]
    NoSteps,
    /// The training ended before the first step to record.
    #[error(
        "nothing was recorded: the training made {made} forward passes and the recording was to begin \
         with number {first}, counted from 0; record an earlier step, and put the forward pass into \
         `burn_gradient_release_timeline::forward`"
    )]
    TooShort {
        /// Number of forward passes made.
        made: usize,
        /// Index of the first forward pass to record.
        first: usize,
    },
    /// The tensors of the model are not on a recorded backend.
    #[error(
        "the model is not on a recorded backend: put `Recorded` around the innermost one, as in \
         `Autodiff<Recorded<Flex>>`"
    )]
    NotRecorded,
    /// The file could not be written.
    #[error(transparent)]
    Save(#[from] SnapshotError),
}

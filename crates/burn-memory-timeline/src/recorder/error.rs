//! What can go wrong with a recording.

use crate::snapshot::SnapshotError;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Another recording of this process is under way.
    #[error(
        "a recording is under way already: a process has one at a time; finish the other first"
    )]
    UnderWay,
    /// No step is to be recorded.
    #[error("no step to record: the range of steps is empty")]
    NoSteps,
    /// The training ended before the first step that was to be recorded.
    #[error(
        "nothing was recorded: the training made {made} forward passes and the recording was to begin \
         with number {first}, counted from 0; record an earlier step, and put the forward pass into \
         `burn_memory_timeline::forward`"
    )]
    TooShort {
        /// Forward passes that were made.
        made: usize,
        /// The first that was to be recorded.
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

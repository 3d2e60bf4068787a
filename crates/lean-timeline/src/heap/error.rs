//! Errors of a recording.

use crate::snapshot::SnapshotError;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The program has another allocator.
    #[error(
        "the heap cannot be recorded: make `lean_timeline::heap::Heap` the `#[global_allocator]` of \
         the program"
    )]
    NoAllocator,
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
         `forward`"
    )]
    TooShort {
        /// Number of forward passes made.
        made: usize,
        /// Index of the first forward pass to record.
        first: usize,
    },
    /// No parameter of the model is in memory that the recording knows.
    #[error(
        "no parameter of the model was found on the heap: start the recording before the model is \
         made, and train on Flex"
    )]
    NoParameters,
    /// The file could not be written.
    #[error(transparent)]
    Save(#[from] SnapshotError),
}

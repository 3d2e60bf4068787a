//! What the recorders have in common, whatever they record: what they are told, and why they fail.

use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;

use crate::snapshot::{Snapshot, SnapshotError};

/// What to record.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The title of the snapshot.
    pub title: String,
    /// Training steps, numbered from 0. Each begins with a forward pass.
    pub steps: Range<usize>,
    /// The file of the snapshot.
    pub file: Option<PathBuf>,
}

impl Plan {
    /// The third and the fourth step: the first one makes the optimizer's state.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            steps: 2..4,
            file: None,
        }
    }

    /// Checks it, before the training.
    ///
    /// # Errors
    ///
    /// The range of steps is empty, or the folder of the file does not exist.
    pub fn check(&self) -> Result<(), RecordError> {
        if self.steps.is_empty() {
            return Err(RecordError::NoSteps);
        }
        match &self.file {
            Some(file) => Ok(Snapshot::check_folder(file)?),
            None => Ok(()),
        }
    }

    /// Writes the snapshot to the file, if there is to be one.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, snapshot: Snapshot) -> Result<Snapshot, RecordError> {
        if let Some(file) = &self.file {
            snapshot.save(file)?;
        }
        Ok(snapshot)
    }

    /// The error of a training that has made too few forward passes.
    pub fn too_short(&self, made: usize) -> RecordError {
        RecordError::TooShort {
            made,
            first: self.steps.start,
        }
    }
}

/// Why there is no recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The program has another allocator.
    #[error(
        "the heap cannot be recorded: make `Heap` (`burn_lean::timeline::Heap`) the \
         `#[global_allocator]` of the program"
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

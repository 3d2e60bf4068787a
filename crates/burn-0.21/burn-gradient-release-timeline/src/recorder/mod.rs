//! The recorder: follows every tensor from the operation that makes it to its last copy.

mod counter;
mod entry;
mod handle;
mod lookup;
mod operation;
mod optimizer;
mod parameters;
mod pass;
mod plan;
mod state;
mod tensor;

use std::{ops::Range, path::PathBuf};

use lean_timeline::recording;

pub use counter::{MemoryCounter, Sampling};
pub use lean_timeline::recording::RecordError;
pub use optimizer::{RecordSteps, RecordedOptimizer};
pub use pass::{backward, forward};
pub use tensor::RecordedTensor;

pub(crate) use lookup::answer;
pub(crate) use operation::Operation;

use crate::snapshot::Snapshot;
use plan::Plan;

/// Records a few steps of a training.
#[derive(Debug)]
pub struct Recorder {
    plan: Plan,
}

impl Recorder {
    /// A recorder of the third and the fourth step: the first one makes the optimizer's state.
    ///
    /// `burn-memory` shows `title`.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            plan: Plan {
                recording: recording::Plan::new(title),
                counter: None,
                sampling: None,
            },
        }
    }

    /// Records these steps, counted from 0. A step begins with its [forward pass](forward).
    pub fn with_steps(mut self, steps: Range<usize>) -> Self {
        self.plan.recording.steps = steps;
        self
    }

    /// Samples how many bytes the allocator or the device has in use: with a counter of the heap
    /// after every event, with any other where phases begin and end.
    ///
    /// Without a counter, the recording has no workspaces of operations, and cannot tell whether
    /// its bytes add up.
    pub fn with_counter(mut self, counter: impl MemoryCounter + 'static) -> Self {
        self.plan.counter = Some(Box::new(counter));
        self
    }

    /// Samples this often, whatever the counter counts.
    pub fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.plan.sampling = Some(sampling);
        self
    }

    /// Writes the snapshot to this file as soon as the last of the steps is over: when the next one
    /// begins, or the recording is finished. The ending `.perfetto.json` makes it a trace for Perfetto.
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.plan.recording.file = Some(file.into());
        self
    }

    /// Starts to count the training steps of this process.
    ///
    /// # Errors
    ///
    /// If a recording is under way, the range of steps is empty, or the folder of the file does not
    /// exist, so that the training would be lost.
    pub fn start(self) -> Result<Recording, RecordError> {
        self.plan.recording.check()?;
        state::start(self.plan)?;
        Ok(Recording { is_open: true })
    }
}

/// A recording under way. Dropping it discards what was recorded, and writes no file; a file that
/// was written when the last step was over stays.
#[derive(Debug)]
#[must_use = "dropping it discards the recording"]
pub struct Recording {
    is_open: bool,
}

impl Recording {
    /// Ends the recording, if it has not ended with its last step, and returns it.
    ///
    /// # Errors
    ///
    /// If no step was recorded, if the model is not on a [recorded](crate::Recorded) backend, or if
    /// the file could not be written.
    pub fn finish(mut self) -> Result<Snapshot, RecordError> {
        self.is_open = false;
        state::finish()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_open {
            state::discard();
        }
    }
}

//! The recorder: hears of every operation, and keeps book of who holds what.

mod counter;
mod error;
mod held;
mod ledger;
mod look;
mod operation;
mod optimizer;
mod parameters;
mod pass;
mod state;

use std::{ops::Range, path::PathBuf};

pub use counter::{MemoryCounter, Sampling};
pub use error::RecordError;
pub use optimizer::{RecordSteps, RecordedOptimizer};
pub use pass::{backward, forward};

pub(crate) use held::Held;
pub(crate) use look::show;
pub(crate) use operation::Operation;

use crate::Snapshot;
use state::Plan;

/// Records a few steps of a training.
#[derive(Debug)]
pub struct Recorder {
    plan: Plan,
}

impl Recorder {
    /// A recorder of the third and the fourth step: in the first the optimizer's state is made.
    /// `title` is for people.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            plan: Plan {
                title: title.into(),
                steps: 2..4,
                counter: None,
                sampling: None,
                file: None,
            },
        }
    }

    /// Records these steps. A step begins with its [forward pass](forward); they are counted from
    /// 0.
    pub fn with_steps(mut self, steps: Range<usize>) -> Self {
        self.plan.steps = steps;
        self
    }

    /// Asks the allocator or the device how much is in use: where it counts the heap, after every
    /// event, else where phases begin and end.
    ///
    /// Without it what operations take for themselves is not seen, and nothing says that the bytes
    /// add up.
    pub fn with_counter(mut self, counter: impl MemoryCounter + 'static) -> Self {
        self.plan.counter = Some(Box::new(counter));
        self
    }

    /// Asks the counter as often as this, whatever it counts.
    pub fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.plan.sampling = Some(sampling);
        self
    }

    /// Writes the snapshot to this file as soon as the last of the steps is over, that is, when
    /// another begins or the recording is finished.
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.plan.file = Some(file.into());
        self
    }

    /// Begins to count the steps of this process.
    ///
    /// # Errors
    ///
    /// If a recording is under way, there is no step in the range, or the folder of the file does not
    /// exist: it would be a pity to hear of that after the training.
    pub fn start(self) -> Result<Recording, RecordError> {
        if self.plan.steps.is_empty() {
            return Err(RecordError::NoSteps);
        }
        if let Some(file) = &self.plan.file {
            Snapshot::find_folder(file)?;
        }
        state::open(self.plan)?;
        Ok(Recording { is_open: true })
    }
}

/// A recording under way. Dropped, it is given up.
#[derive(Debug)]
#[must_use = "dropped, the recording is given up"]
pub struct Recording {
    is_open: bool,
}

impl Recording {
    /// Ends the recording, if it has not ended with the last step, and says what was recorded.
    ///
    /// # Errors
    ///
    /// If no step was recorded, if the model is not on a [recorded](crate::Recorded) backend, or if
    /// the file could not be written.
    pub fn finish(mut self) -> Result<Snapshot, RecordError> {
        self.is_open = false;
        state::close()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_open {
            let _ = state::close();
        }
    }
}

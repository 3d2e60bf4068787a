//! The recorder of a process.

use std::ops::Range;
use std::path::PathBuf;

use super::session::Session;
use super::tracker::{self, with_tracked};
use crate::recording::{Plan, RecordError};
use crate::snapshot::Snapshot;

/// Records a few steps of a training.
#[derive(Clone, Debug)]
pub struct Recorder {
    plan: Plan,
}

impl Recorder {
    /// A recorder of the third and the fourth step: the first one makes the optimizer's state.
    ///
    /// `burn-memory` shows `title`.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            plan: Plan::new(title),
        }
    }

    /// Records these steps, counted from 0. A step begins with its [forward pass](super::forward).
    pub fn with_steps(mut self, steps: Range<usize>) -> Self {
        self.plan.steps = steps;
        self
    }

    /// Writes the snapshot to this file as soon as the last of the steps is over: when the next one
    /// begins, or the recording is finished. The ending `.perfetto.json` makes it a trace for Perfetto.
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.plan.file = Some(file.into());
        self
    }

    /// Starts to record. Do this before the model is made: memory that is in use already when the
    /// first recording of a process starts is unknown to it.
    ///
    /// # Errors
    ///
    /// The allocator of the program is not [`Heap`](super::Heap), a recording is under way, the range
    /// of steps is empty, or the folder of the file does not exist.
    pub fn start(self) -> Result<Recording, RecordError> {
        self.plan.check()?;
        if !tracker::begin() {
            return Err(RecordError::NoAllocator);
        }
        with_tracked(|tracked| {
            if tracked.session.is_some() {
                return Err(RecordError::UnderWay);
            }
            tracked.peak = tracked.in_use;
            let live = tracked
                .live
                .iter()
                .map(|(address, bytes)| (*address, *bytes));
            tracked.session = Some(Session::new(self.plan.clone(), live, tracked.in_use));
            Ok(Recording { is_open: true })
        })
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
    /// If no step was recorded, if no parameter of the model is on the heap, or if the file could not
    /// be written.
    pub fn finish(mut self) -> Result<Snapshot, RecordError> {
        self.is_open = false;
        with_tracked(|tracked| {
            let session = tracked.session.take();
            session.expect("a recording finishes once").finish()
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_open {
            with_tracked(|tracked| tracked.session = None);
        }
    }
}

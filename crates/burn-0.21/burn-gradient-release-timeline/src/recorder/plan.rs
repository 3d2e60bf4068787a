//! The plan of a recording.

use std::fmt;

use lean_timeline::recording;

use super::counter::{MemoryCounter, Sampling};

pub(super) struct Plan {
    pub(super) recording: recording::Plan,
    pub(super) counter: Option<Box<dyn MemoryCounter>>,
    /// `None`: as suits the counter.
    pub(super) sampling: Option<Sampling>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recording.fmt(f)
    }
}

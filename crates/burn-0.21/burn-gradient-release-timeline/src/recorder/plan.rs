//! The plan of a recording.

use std::{fmt, ops::Range, path::PathBuf};

use super::counter::{MemoryCounter, Sampling};

pub(super) struct Plan {
    pub(super) title: String,
    /// Training steps, numbered from 0. Each begins with a forward pass.
    pub(super) steps: Range<usize>,
    pub(super) counter: Option<Box<dyn MemoryCounter>>,
    /// `None`: as suits the counter.
    pub(super) sampling: Option<Sampling>,
    pub(super) file: Option<PathBuf>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("title", &self.title)
            .field("steps", &self.steps)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

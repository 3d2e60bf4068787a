//! How far the parameters armed together have come.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts the actions on parameters that were armed together.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: AtomicUsize,
    acted: AtomicUsize,
    interrupted: AtomicBool,
}

impl Progress {
    /// Actions that were begun; more than [`acted`](Self::acted) if one panicked.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn acted(&self) -> usize {
        self.acted.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.acted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }
}

//! Counters of one armed step.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::util::lock::lock;

/// Operations that the backward passes of a step have computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recomputed {
    /// Segments of the forward pass that were replayed.
    pub segments: usize,
    /// Operations in them.
    pub operations: usize,
    /// Bytes kept from the forward pass for that: the tensors that enter the segments, and their
    /// random masks as bits. Parameters are not counted.
    pub kept_bytes: u64,
    /// The peak of the activations, in bytes, in the backward pass that
    /// [`Recompute`](crate::Recompute) plans for, as estimated from the sizes of tensors. More than
    /// a [`Budget`](crate::Recompute::Budget) if no cuts fit. `None` as long as there is no plan.
    pub planned_bytes: Option<u64>,
}

/// Counts the actions on parameters that were armed together.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: AtomicUsize,
    acted: AtomicUsize,
    interrupted: AtomicBool,
    recomputed: Mutex<Recomputed>,
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

    /// Operations computed again so far.
    pub(crate) fn recomputed(&self) -> Recomputed {
        *lock(&self.recomputed)
    }

    /// Notes the operations that a backward pass computes again.
    pub(crate) fn recompute(&self, pass: Recomputed) {
        let mut recomputed = lock(&self.recomputed);
        recomputed.segments += pass.segments;
        recomputed.operations += pass.operations;
        recomputed.kept_bytes += pass.kept_bytes;
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }
}

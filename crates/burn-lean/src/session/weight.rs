//! The weight of an armed parameter.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;

use crate::backend::plain;
use crate::path::{Path, path_text};
use crate::tape::OnTape;

/// How many armings of parameters have not ended.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether some parameter is armed, so that its `Param` holds a placeholder.
pub(crate) fn some_are_armed() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// Counts an arming until it ends.
#[derive(Debug)]
pub(super) struct Open;

impl Open {
    pub(super) fn new() -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often the parameter was used since it was armed.
#[derive(Default)]
pub(super) struct Uses {
    /// Everywhere, on a tape or not.
    pub(super) all: u32,
    /// On the model's tape, outside of every recomputed scope.
    pub(super) direct: u32,
    /// Recomputed scopes that use it.
    pub(super) scopes: u32,
}

/// The weight at the moment at which a copy of the model was taken.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) weight: DispatchTensor,
    /// The leaf of the arming: a model with adapters keeps its slots from step to step.
    pub(super) leaf_id: NodeId,
    pub(crate) after_step: bool,
}

/// Where the weight is.
pub(super) enum Weight {
    /// In the slot, on no tape.
    Bare(DispatchTensor),
    /// On the tape, as the only primitive of the leaf hook.
    Hooked(OnTape),
    /// In the optimizer, or back in its `Param`.
    Elsewhere,
}

impl Weight {
    pub(super) fn get(&self, path: &Path) -> DispatchTensor {
        match self {
            Weight::Bare(weight) => weight.clone(),
            Weight::Hooked(hooked) => plain(hooked.get()),
            Weight::Elsewhere => panic!(
                "gradient release: {} was lost when its optimizer panicked in the middle of a \
                 step; load the last checkpoint",
                path_text(path)
            ),
        }
    }

    pub(super) fn take(&mut self, path: &Path) -> DispatchTensor {
        match std::mem::replace(self, Weight::Elsewhere) {
            Weight::Bare(weight) => weight,
            Weight::Hooked(hooked) => hooked.into_value(),
            Weight::Elsewhere => Weight::Elsewhere.get(path),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        !matches!(self, Self::Elsewhere)
    }
}

//! The state of a slot: its weight, and what happened to the gradient of this step.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;

use crate::armed_slot::{Phase, Purpose, Taken};
use crate::backend::{Inner, Primitive, Tracked};
use crate::path::{Path, path_text};
use crate::session::Session;
use crate::tape::placeholder_element;

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
    fn new() -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of a slot in one arming.
pub(super) struct State<B: Inner> {
    pub(super) session: Weak<Session>,
    pub(super) leaf_id: NodeId,
    pub(super) placeholder: Primitive<B>,
    /// Marks a gradient that was taken: one NaN element of the parameter's rank.
    pub(super) mark: Primitive<B>,
    /// The weight has gone on, and has not had the gradient of this arming. Hooks hold it too, and
    /// outlive the slot.
    pub(super) has_gone_on: Arc<AtomicBool>,
    /// The leaf of the parameter while it is armed. Burn frees no graph of which a node is held.
    pub(super) leaf: Option<Tracked<B>>,
    pub(super) weight: Weight<B>,
    pub(super) purpose: Purpose,
    /// Gradients of earlier micro-batches.
    pub(super) sum: Option<Primitive<B>>,
    pub(super) phase: Phase,
    pub(super) open: Option<Open>,
    pub(super) uses: Uses,
    /// The hook is at the end of backward, where all gradients exist.
    pub(super) is_late: bool,
    /// A mapper has visited the parameter.
    pub(super) was_mapped: bool,
    /// The weight before and after the step, which copies of the model hold.
    pub(super) snapshots: [Weak<Snapshot<B>>; 2],
    /// The weight on other devices, which copies of the model hold.
    pub(super) moved: Vec<Weak<Snapshot<B>>>,
}

impl<B: Inner> State<B> {
    /// The state of a slot that is not armed and holds no weight.
    pub(super) fn unarmed(leaf_id: NodeId, placeholder: Primitive<B>, mark: Primitive<B>) -> Self {
        Self {
            session: Weak::new(),
            leaf_id,
            placeholder,
            mark,
            has_gone_on: Arc::default(),
            leaf: None,
            weight: Weight::Elsewhere,
            purpose: Purpose::Step,
            sum: None,
            phase: Phase::Ended,
            open: None,
            uses: Uses::default(),
            is_late: false,
            was_mapped: false,
            snapshots: [Weak::new(), Weak::new()],
            moved: Vec::new(),
        }
    }

    /// Arms a weight. Returns its leaf as well.
    pub(super) fn arm(weight: Primitive<B>, session: &Arc<Session>) -> (Self, Tracked<B>) {
        let mark = placeholder_element::<B>(&weight);
        let placeholder = B::float_expand(mark.clone(), weight.shape());
        let leaf = <Tracked<B>>::new(placeholder.clone()).require_grad();
        let state = Self {
            session: Arc::downgrade(session),
            leaf: Some(leaf.clone()),
            weight: Weight::Bare(weight),
            phase: Phase::Waiting,
            open: Some(Open::new()),
            ..Self::unarmed(leaf.id(), placeholder, mark)
        };
        (state, leaf)
    }

    pub(super) fn end(&mut self, phase: Phase) {
        self.phase = phase;
        self.open = None;
    }

    pub(super) fn has_weight(&self) -> bool {
        !matches!(self.weight, Weight::Elsewhere)
    }

    /// Adds a gradient to the sum of earlier micro-batches, in the order of Burn's accumulator.
    pub(super) fn summed(&mut self, grad: Primitive<B>) -> Primitive<B> {
        match self.sum.take() {
            Some(sum) => B::float_add(sum, grad),
            None => grad,
        }
    }

    pub(super) fn is_after_step(&self) -> bool {
        self.phase.taken() == Some(Taken::Stepped)
    }
}

/// How often the parameter was used since it was armed.
#[derive(Default)]
pub(super) struct Uses {
    /// Everywhere, on a tape or not.
    pub(super) all: usize,
    /// On the model's tape, outside of every recomputed scope.
    pub(super) direct: usize,
    /// Recomputed scopes that use it.
    pub(super) scopes: usize,
}

/// The weight at the moment at which a copy of the model was taken.
#[derive(Debug)]
pub(crate) struct Snapshot<B: Inner> {
    pub(crate) weight: Primitive<B>,
    pub(crate) after_step: bool,
}

/// Where the weight is.
pub(super) enum Weight<B: Inner> {
    /// In the slot, on no tape.
    Bare(Primitive<B>),
    /// On the tape, as the only primitive of the leaf hook.
    Hooked(Tracked<B>),
    /// In the optimizer, or back in its `Param`.
    Elsewhere,
}

impl<B: Inner> Weight<B> {
    pub(super) fn get(&self, path: &Path) -> Primitive<B> {
        match self {
            Weight::Bare(weight) => weight.clone(),
            Weight::Hooked(hooked) => hooked.primitive().clone(),
            Weight::Elsewhere => panic!(
                "gradient release: {} was lost when its optimizer panicked in the middle of a \
                 step; load the last checkpoint",
                path_text(path)
            ),
        }
    }

    pub(super) fn take(&mut self, path: &Path) -> Primitive<B> {
        match std::mem::replace(self, Weight::Elsewhere) {
            Weight::Bare(weight) => weight,
            Weight::Hooked(hooked) => hooked.into_primitive(),
            Weight::Elsewhere => Weight::<B>::Elsewhere.get(path),
        }
    }
}

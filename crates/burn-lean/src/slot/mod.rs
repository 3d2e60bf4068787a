//! The slot owns the weight of an armed parameter: from `arm` to `step`, its `Param` holds none.

mod armed;
mod gradient;
mod state;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, ThreadId};

use burn::backend::autodiff::NodeId;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::ParamId;

use crate::armed_slot::{ArmedSlot, Phase, Taken};
use crate::backend::{Inner, Primitive, Tracked};
use crate::error::expect;
use crate::hook_orders::HookKey;
use crate::lock::lock;
use crate::path::{Path, path_text};
use crate::session::{Session, Stepper};
use crate::tape::{HookOwner, leaf_hook, rung};
pub(crate) use state::{Snapshot, some_are_armed};
use state::{State, Weight};

/// A slot that can be armed again: the reparameterizations of a model with adapters keep theirs.
pub(crate) trait Rearm: ArmedSlot {
    /// Moves the weight `base` into the slot. Returns the new leaf.
    fn arm_again(&self, session: &Arc<Session>, base: DispatchTensor) -> DispatchTensor;
}

/// Steps one parameter with its gradient, if this replica has the optimizer state.
pub(crate) type StepFn<B> =
    fn(&mut Stepper, ParamId, &Path, Primitive<B>, Primitive<B>, is_owner: bool) -> Stepped<B>;

/// Functions over the complete gradient of a parameter, for its rank.
pub(crate) struct GradientFns<B: Inner> {
    /// Steps with the gradient.
    pub(crate) step: StepFn<B>,
    /// Measures the norm of the gradient.
    pub(crate) measure: fn(&mut Stepper, ParamId, Primitive<B>),
}

impl<B: Inner> Clone for GradientFns<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Inner> Copy for GradientFns<B> {}

/// The weight after a step.
pub(crate) struct Stepped<B: Inner> {
    pub(crate) weight: Primitive<B>,
    /// The weight is unchanged: its gradient must not be stepped with.
    pub(crate) is_skipped: bool,
}

/// An armed parameter.
pub(crate) struct Slot<B: Inner> {
    pub(crate) id: ParamId,
    pub(crate) path: Path,
    fns: GradientFns<B>,
    mapper: Arc<dyn Any + Send + Sync>,
    state: Mutex<State<B>>,
    /// The thread that runs the optimizer's step, under the lock of `state`: other threads wait for
    /// the new weight, and this one would wait for itself.
    stepping: Mutex<Option<ThreadId>>,
}

impl<B: Inner> fmt::Debug for Slot<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Marks this thread as the one that runs the optimizer's step, until it is dropped.
struct Stepping<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Stepping<'a> {
    fn begin(stepping: &'a Mutex<Option<ThreadId>>) -> Self {
        *lock(stepping) = Some(thread::current().id());
        Self(stepping)
    }
}

impl Drop for Stepping<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

impl<B: Inner> Slot<B> {
    /// Arms a parameter. Returns its leaf as well.
    pub(crate) fn arm(
        id: ParamId,
        path: Path,
        weight: Primitive<B>,
        session: &Arc<Session>,
        fns: GradientFns<B>,
        mapper: Arc<dyn Any + Send + Sync>,
    ) -> (Self, Tracked<B>) {
        let (state, leaf) = State::arm(weight, session);
        let slot = Self {
            id,
            path,
            fns,
            mapper,
            state: Mutex::new(state),
            stepping: Mutex::new(None),
        };
        (slot, leaf)
    }

    /// A slot for a copy of a model with adapters, which keeps its reparameterizations after
    /// `step`.
    pub(crate) fn unarmed_twin(&self) -> Self {
        let state = self.state();
        let twin = State::unarmed(state.leaf_id, state.placeholder.clone(), state.mark.clone());
        Self {
            id: self.id,
            path: self.path.clone(),
            fns: self.fns,
            mapper: self.mapper.clone(),
            state: Mutex::new(twin),
            stepping: Mutex::new(None),
        }
    }

    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.state().session.upgrade()
    }

    pub(crate) fn leaf_id(&self) -> NodeId {
        self.state().leaf_id
    }

    pub(crate) fn placeholder(&self) -> Primitive<B> {
        self.state().placeholder.clone()
    }

    /// Ignores poisoning: the session records a step that has panicked.
    ///
    /// # Panics
    ///
    /// Inside the optimizer's step of this parameter, which has its weight.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        let is_stepping = *lock(&self.stepping) == Some(thread::current().id());
        assert!(
            !is_stepping,
            "gradient release: the optimizer reads {} from an armed model while it steps that \
             parameter, whose weight was handed to it; use the tensor that `step` is given, or a \
             copy of the model taken before `arm`",
            path_text(&self.path)
        );
        lock(&self.state)
    }

    /// The state after the reductions in flight, which step the weight.
    fn reduced_state(&self) -> MutexGuard<'_, State<B>> {
        let state = self.state();
        if state.phase.taken() != Some(Taken::InFlight) {
            return state;
        }
        let session = state.session.upgrade();
        drop(state);
        let session = session.unwrap_or_else(|| {
            panic!(
                "gradient release: the optimizer of {} was dropped before `step`, while its \
                 gradient was in flight to the other replicas; load the last checkpoint",
                path_text(&self.path)
            )
        });
        expect(session.wait_for_reductions());
        self.state()
    }

    /// Whether the slot is still armed.
    pub(crate) fn is_armed(&self) -> bool {
        let state = self.state();
        let session = state.session.upgrade();
        !state.phase.has_ended() && session.is_some_and(|session| session.is_armed())
    }

    pub(crate) fn weight(&self) -> Primitive<B> {
        self.reduced_state().weight.get(&self.path)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    pub(crate) fn has_weight(&self) -> bool {
        self.state().has_weight()
    }

    /// The current weight, for a copy of the model. `None` after the arming: the `Param` has it.
    pub(crate) fn snapshot(&self) -> Option<Arc<Snapshot<B>>> {
        let mut state = self.reduced_state();
        if !state.has_weight() {
            return None;
        }
        let after_step = state.is_after_step();
        let kept = &mut state.snapshots[usize::from(after_step)];
        if let Some(snapshot) = kept.upgrade() {
            return Some(snapshot);
        }
        let weight = state.weight.get(&self.path);
        let snapshot = Arc::new(Snapshot { weight, after_step });
        state.snapshots[usize::from(after_step)] = Arc::downgrade(&snapshot);
        Some(snapshot)
    }

    /// Registers a copy of the weight on another device.
    pub(crate) fn moved(&self, weight: Primitive<B>) -> Option<Arc<Snapshot<B>>> {
        let mut state = self.state();
        let after_step = state.is_after_step();
        let copy = Arc::new(Snapshot { weight, after_step });
        state.moved.retain(|moved| moved.strong_count() > 0);
        state.moved.push(Arc::downgrade(&copy));
        Some(copy)
    }

    /// Whether the snapshot is still the weight.
    pub(crate) fn is_current(&self, snapshot: &Snapshot<B>) -> bool {
        let state = self.state();
        let is_open = !state.phase.has_ended() && state.has_weight();
        is_open && snapshot.after_step == state.is_after_step()
    }

    /// The weight of a model of which only the placeholder is known; `None` if it could be one of
    /// several. `is_leaf` says whether the placeholder is the slot's leaf, which the armed model
    /// and its copies on the same device have.
    pub(crate) fn weight_behind(&self, is_leaf: bool) -> Option<Primitive<B>> {
        let state = self.reduced_state();
        let mut copies: Vec<_> = state.snapshots.iter().filter_map(Weak::upgrade).collect();
        if !is_leaf {
            copies.extend(state.moved.iter().filter_map(Weak::upgrade));
        }
        if is_leaf && state.has_weight() {
            let same = copies
                .iter()
                .all(|copy| copy.after_step == state.is_after_step());
            return same.then(|| state.weight.get(&self.path));
        }
        match &copies[..] {
            [copy] => Some(copy.weight.clone()),
            _ => None,
        }
    }

    /// Puts the parameter on the model's tape. `directly` is false for a recomputed scope.
    pub(crate) fn on_tape(self: &Arc<Self>, directly: bool) -> Tracked<B> {
        let session = self.session();
        let key = HookKey::on_model(self.id);
        let order = session.as_ref().map(|session| session.order_of(key));
        let (order, is_known) = order.unwrap_or((1, false));
        let mut state = self.reduced_state();
        let uses = match directly {
            true => &mut state.uses.direct,
            false => &mut state.uses.scopes,
        };
        *uses += 1;
        state.is_late = !is_known;
        if let Weight::Hooked(hooked) = &state.weight {
            return hooked.clone();
        }
        let weight = state.weight.take(&self.path);
        let below = rung::<B>(order - 1, &weight.device());
        let owner: Weak<dyn HookOwner<B>> = Arc::<Self>::downgrade(self);
        let leaf = state
            .leaf
            .as_ref()
            .expect("a slot that holds a weight holds its leaf");
        let hooked = leaf_hook::<B>(weight, leaf, below, owner, &state.has_gone_on);
        if let Some(session) = session {
            session.hook_made(hooked.id(), key, order);
        }
        state.weight = Weight::Hooked(hooked.clone());
        hooked
    }

    pub(crate) fn mark_used(&self) {
        self.state().uses.all += 1;
    }

    pub(crate) fn mark_mapped(&self) {
        self.state().was_mapped = true;
    }

    /// Whether one scope is the only use of the parameter, so that it may step the parameter at
    /// once. Backward may not reach all of several uses, which only the hook can tell.
    pub(crate) fn is_for_one_scope(&self) -> bool {
        let state = self.state();
        state.uses.direct == 0 && state.uses.scopes == 1 && state.phase == Phase::Waiting
    }
}

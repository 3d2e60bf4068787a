//! A slot as its model sees it.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::backend::autodiff::NodeId;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::module::ParamId;
use burn::tensor::Shape;

use super::phase::{Phase, Purpose, Taken};
use super::weight::{Open, Snapshot, Uses, Weight};
use super::{Session, Slot, State, StepFn};
use crate::backend::{added, is_same_backend, plain};
use crate::error::expect;
use crate::hook_orders::HookKey;
use crate::lock::lock;
use crate::path::{Path, path_text};
use crate::tape::{HookOwner, OnTape, leaf, leaf_hook, node_of, placeholder_element};

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl State {
    /// The state of a slot that is not armed and holds no weight.
    fn unarmed(leaf_id: NodeId, shape: Shape, mark: DispatchTensor) -> Self {
        Self {
            session: Weak::new(),
            leaf_id,
            shape,
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

    /// Arms the weight of a base. Returns the leaf that takes its place as well.
    pub(super) fn arm(base: DispatchTensor, session: &Arc<Session>) -> (Self, DispatchTensor) {
        let autodiff = base.autodiff;
        let weight = plain(base);
        let mark = placeholder_element(&weight);
        let shape = weight.shape();
        let leaf = leaf(
            Dispatch::float_expand(mark.clone(), shape.clone()),
            autodiff,
        );
        let leaf_id = node_of(&leaf).expect("a leaf has a node");
        let state = Self {
            session: Arc::downgrade(session),
            leaf: Some(OnTape::new(leaf.clone())),
            weight: Weight::Bare(weight),
            phase: Phase::Waiting,
            open: Some(Open::new()),
            ..Self::unarmed(leaf_id, shape, mark)
        };
        (state, leaf)
    }

    pub(super) fn take_sum(&mut self) -> Option<DispatchTensor> {
        self.sum.take().map(|sum| *sum)
    }

    /// The gradient with the sum of earlier micro-batches, which stays.
    pub(super) fn with_sum(&self, grad: DispatchTensor) -> Option<DispatchTensor> {
        added(self.sum.as_deref().cloned(), Some(grad))
    }

    /// Adds to the sum of earlier micro-batches.
    pub(super) fn add_to_sum(&mut self, grad: Option<DispatchTensor>) {
        self.sum = added(self.take_sum(), grad).map(Box::new);
    }

    /// Ends the arming. What is left of it must not come into the next one.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
        self.open = None;
        self.leaf = None;
        self.sum = None;
        self.weight = Weight::Elsewhere;
    }

    /// Takes the weight off a tape that is not used again. A scope that no backward pass comes to keeps
    /// the slot, and so the slot would keep the graph of that scope for ever.
    pub(super) fn leave_tape(&mut self, path: &Path) {
        self.leaf = None;
        if self.weight.is_here() {
            self.weight = Weight::Bare(self.weight.take(path));
        }
    }

    fn snapshot_of(&self, weight: DispatchTensor) -> Snapshot {
        Snapshot {
            weight,
            leaf_id: self.leaf_id,
            after_step: self.is_after_step(),
        }
    }

    pub(super) fn is_after_step(&self) -> bool {
        self.phase.taken() == Some(Taken::Stepped)
    }
}

impl Slot {
    /// Arms a parameter. Returns its leaf as well.
    pub(crate) fn arm(
        id: ParamId,
        path: Path,
        base: DispatchTensor,
        session: &Arc<Session>,
        step: StepFn,
        mapper: Arc<dyn Any + Send + Sync>,
    ) -> (Self, DispatchTensor) {
        let (state, leaf) = State::arm(base, session);
        let slot = Self {
            id: AtomicU64::new(id.val()),
            path: Mutex::new(Arc::new(path)),
            step,
            mapper: Mutex::new(mapper),
            state: Mutex::new(state),
            owners: AtomicU32::default(),
        };
        (slot, leaf)
    }

    /// A slot for a copy of a model with adapters, which keeps its reparameterizations after
    /// `step`.
    pub(crate) fn unarmed_twin(&self) -> Self {
        let state = self.state();
        let twin = State::unarmed(state.leaf_id, state.shape.clone(), state.mark.clone());
        Self {
            id: AtomicU64::new(self.id().val()),
            path: Mutex::new(self.path()),
            step: self.step,
            mapper: Mutex::new(self.mapper()),
            state: Mutex::new(twin),
            owners: AtomicU32::default(),
        }
    }

    pub(crate) fn id(&self) -> ParamId {
        self.id.load(Ordering::Relaxed).into()
    }

    pub(crate) fn path(&self) -> Arc<Path> {
        lock(&self.path).clone()
    }

    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.state().session.upgrade()
    }

    /// Whether it was armed last in this session, which may be gone.
    pub(crate) fn is_of(&self, session: *const Session) -> bool {
        std::ptr::eq(self.state().session.as_ptr(), session)
    }

    pub(crate) fn leaf_id(&self) -> NodeId {
        self.state().leaf_id
    }

    pub(crate) fn placeholder(&self) -> DispatchTensor {
        let state = self.state();
        Dispatch::float_expand(state.mark.clone(), state.shape.clone())
    }

    /// Ignores poisoning: the session records a step that has panicked.
    ///
    /// # Panics
    ///
    /// Inside the optimizer's step of this parameter, which has its weight.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        assert!(
            !self.is_stepping(),
            "gradient release: the optimizer reads {} from an armed model while it steps that \
             parameter, whose weight was handed to it; use the tensor that `step` is given, or a \
             copy of the model taken before `arm`",
            path_text(&self.path())
        );
        lock(&self.state)
    }

    /// The state after the reductions in flight, which step the weight.
    fn reduced_state(&self) -> MutexGuard<'_, State> {
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
                path_text(&self.path())
            )
        });
        assert!(
            !session.is_stepping(),
            "gradient release: the optimizer reads {} from an armed model while it steps another \
             parameter, and its gradient is in flight to the other replicas; use a copy of the \
             model taken before `arm`",
            path_text(&self.path())
        );
        expect(session.wait_for_reductions());
        self.state()
    }

    /// Whether the slot is still armed.
    pub(crate) fn is_armed(&self) -> bool {
        !self.phase().has_ended() && self.armed_session().is_some()
    }

    /// The session, if it is armed with this slot.
    pub(super) fn armed_session(&self) -> Option<Arc<Session>> {
        let session = self.session()?;
        (session.is_armed() && session.has(self)).then_some(session)
    }

    /// Leaves the tape, if no model, copy or optimizer has the slot any more.
    pub(crate) fn leave_tape_if_unused(&self) {
        // What is dropped waits for nobody, and does not panic in an optimizer's step.
        let Ok(state) = self.state.try_lock() else {
            return;
        };
        let mut copies = state.snapshots.iter().chain(&state.moved);
        let is_unused = state.leaf.is_some()
            && self.owners.load(Ordering::Relaxed) == 0
            && copies.all(|copy| copy.strong_count() == 0);
        let session = state.session.upgrade();
        drop(state);
        if is_unused
            && session.is_none_or(|session| !session.has(self))
            && let Ok(mut state) = self.state.try_lock()
        {
            state.leave_tape(&self.path());
        }
    }

    pub(crate) fn weight(&self) -> DispatchTensor {
        self.reduced_state().weight.get(&self.path())
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    pub(crate) fn has_weight(&self) -> bool {
        self.state().weight.is_here()
    }

    /// The current weight, for a copy of the model. `None` after the arming: the `Param` has it.
    pub(crate) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let mut state = self.reduced_state();
        if !state.weight.is_here() {
            return None;
        }
        let after_step = state.is_after_step();
        let kept = &mut state.snapshots[usize::from(after_step)];
        if let Some(snapshot) = kept.upgrade() {
            return Some(snapshot);
        }
        let weight = state.weight.get(&self.path());
        let snapshot = Arc::new(state.snapshot_of(weight));
        state.snapshots[usize::from(after_step)] = Arc::downgrade(&snapshot);
        Some(snapshot)
    }

    /// Registers a copy of the weight on another device.
    pub(crate) fn moved(&self, weight: DispatchTensor) -> Arc<Snapshot> {
        let mut state = self.state();
        assert!(
            is_same_backend(&weight, &state.mark),
            "gradient release: {} is armed and cannot move to another backend; move the model \
             before `arm`, or after `step`",
            path_text(&self.path())
        );
        let copy = Arc::new(state.snapshot_of(weight));
        state.moved.retain(|moved| moved.strong_count() > 0);
        state.moved.push(Arc::downgrade(&copy));
        copy
    }

    /// Whether the snapshot is still the weight.
    pub(crate) fn is_current(&self, snapshot: &Snapshot) -> bool {
        let state = self.state();
        let is_open = !state.phase.has_ended() && state.weight.is_here();
        let now = (state.leaf_id, state.is_after_step());
        is_open && (snapshot.leaf_id, snapshot.after_step) == now
    }

    /// The weight of a model of which only the node of the placeholder is known; `None` if it could be
    /// one of several. Only copies are without autodiff, and moved ones have not the slot's leaf.
    pub(crate) fn weight_behind(&self, node: Option<NodeId>) -> Option<DispatchTensor> {
        let state = self.reduced_state();
        let mut copies: Vec<_> = state.snapshots.iter().filter_map(Weak::upgrade).collect();
        if node != Some(state.leaf_id) {
            copies.extend(state.moved.iter().filter_map(Weak::upgrade));
        }
        if node.is_some() && state.weight.is_here() {
            let same = copies
                .iter()
                .all(|copy| copy.after_step == state.is_after_step());
            return same.then(|| state.weight.get(&self.path()));
        }
        // Those of one moment have one weight, wherever they are.
        let first = copies.first()?;
        let is_same = |copy: &Arc<Snapshot>| copy.after_step == first.after_step;
        copies.iter().all(is_same).then(|| first.weight.clone())
    }

    /// The weight of now, and those that copies of the model have.
    pub(crate) fn weights(&self) -> Vec<DispatchTensor> {
        let state = self.reduced_state();
        let copies = state.snapshots.iter().chain(&state.moved);
        let copies = copies.filter_map(Weak::upgrade);
        let now = state.weight.is_here();
        let now = now.then(|| state.weight.get(&self.path()));
        copies.map(|copy| copy.weight.clone()).chain(now).collect()
    }

    /// Puts the parameter on the model's tape. `directly` is false for a recomputed scope.
    pub(crate) fn on_tape(self: &Arc<Self>, directly: bool) -> DispatchTensor {
        let session = self.session();
        let key = HookKey::on_model(self.id());
        let order = session
            .as_ref()
            .map(|session| session.orders().order_of(key));
        let (order, is_known) = order.unwrap_or((1, false));
        let mut state = self.reduced_state();
        let uses = match directly {
            true => &mut state.uses.direct,
            false => &mut state.uses.scopes,
        };
        *uses += 1;
        state.is_late = !is_known;
        if let Weight::Hooked(hooked) = &state.weight {
            return hooked.get();
        }
        let weight = state.weight.take(&self.path());
        let owner: Weak<dyn HookOwner> = Arc::<Self>::downgrade(self);
        let leaf = state
            .leaf
            .as_ref()
            .expect("a slot that holds a weight holds its leaf");
        let hooked = leaf_hook(
            weight,
            &leaf.get(),
            order - 1,
            owner,
            state.has_gone_on.clone(),
        );
        if let Some(session) = session {
            session.hook_made(&hooked, key, order);
        }
        state.weight = Weight::Hooked(OnTape::new(hooked.clone()));
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

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// By hand: a model moves between two devices of one backend, and Flex has one.
    #[test]
    fn a_record_of_copies_that_were_moved_at_one_moment() {
        let weight = || Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
        let base = weight().autodiff().require_grad().into_dispatch();
        let session = Arc::new(Session::new(None, None));
        let step: StepFn = |_, _, _, _, _, _| unreachable!("nothing is stepped");
        let mapper = Arc::new(());
        let (slot, _leaf) = Slot::arm(ParamId::new(), Path::new(), base, &session, step, mapper);
        let _copies = [(); 2].map(|()| slot.moved(weight().into_dispatch()));
        let saved = slot.weight_behind(None).expect("they have one weight");
        let saved = Tensor::<1>::from_dispatch(saved).into_data();
        assert_eq!(saved, weight().into_data());
    }
}

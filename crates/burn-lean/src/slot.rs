//! The slot owns the weight of an armed parameter: from `arm` to `step`, its `Param` holds none.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::module::ParamId;

use crate::backend::{Inner, Primitive, Tracked};
use crate::lock::lock;
use crate::optimizer::{ReleaseError, expect};
use crate::reduction::{InFlight, flat, shaped};
use crate::session::{Place, Progress, Session, Stepper};
use crate::tape::{HookOwner, leaf_hook, placeholder_element};

/// Where a parameter is in its model: names and containers, from the outermost.
pub(crate) type Path = Vec<(String, String)>;

/// The path as Burn's parameter groups see it.
pub(crate) fn path_text(path: &Path) -> String {
    let names: Vec<&str> = path.iter().map(|(name, _)| name.as_str()).collect();
    names.join(".")
}

/// A [`Slot`] of some backend.
#[cfg_attr(not(feature = "train"), allow(dead_code))] // Some is for burn-train's Learner alone.
pub(crate) trait ArmedSlot: Send + Sync + std::fmt::Debug {
    fn path(&self) -> &Path;
    fn leaf_id(&self) -> u64;
    fn fate(&self) -> Fate;
    /// The sum of earlier micro-batches, if it was not stepped with.
    fn take_sum(&self) -> Option<DispatchTensor>;
    /// The same, which stays.
    fn sum(&self) -> Option<DispatchTensor>;
    fn has_sum(&self) -> bool;
    /// Whether a forward pass has used the parameter.
    fn is_used(&self) -> bool;
    fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>);
    fn arm_again(&self, session: &Arc<Session>, base: DispatchTensor) -> DispatchTensor;
    fn has_ended(&self) -> bool;
    /// Ends the arming, and returns the weight.
    fn end(&self, how: Ended) -> DispatchTensor;
    /// Measures the mean over all replicas, or steps with it, or has the weight of the one that
    /// does.
    fn reduced(&self, session: &Session, grad: Option<Tensor<1>>) -> Result<(), ReleaseError>;
    /// Ends a micro-batch, or a pass that measures: another pass over the same weight follows.
    fn rest(&self);
    /// Steps with an ordinary gradient.
    fn step_now(&self, grad: DispatchTensor);
    /// Notes from now on whether a mapper comes by.
    fn watch(&self);
    fn was_mapped(&self) -> bool;
    /// Whether a copy of the model exists that was taken after the step.
    fn has_stepped_copy(&self) -> bool;
    /// Ends the arming, and keeps the weight: whoever has the slot's placeholder reads it.
    fn abandon(&self);
    /// The `ParamMapper` of the parameter.
    fn mapper(&self) -> Arc<dyn Any + Send + Sync>;
}

/// Steps one parameter, where this replica has its state: weight and gradient in, weight out.
pub(crate) type StepFn<B> =
    fn(&mut Stepper, ParamId, &Path, Primitive<B>, Primitive<B>, is_owner: bool) -> Stepped<B>;

/// What is done with the complete gradient of a parameter of a known rank.
pub(crate) struct GradientFns<B: Inner> {
    /// Steps with it.
    pub(crate) step: StepFn<B>,
    /// Measures it.
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
    /// It is as it was: its gradient was not one to step with.
    pub(crate) is_skipped: bool,
}

/// What to do with a complete gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Step with it.
    Step,
    /// Measure its norm, and drop it.
    Measure,
    /// Add it to the sum of a window of micro-batches.
    Hold,
}

/// An armed parameter.
pub(crate) struct Slot<B: Inner> {
    pub(crate) id: ParamId,
    pub(crate) path: Path,
    fns: GradientFns<B>,
    mapper: Arc<dyn Any + Send + Sync>,
    state: Mutex<State<B>>,
}

impl<B: Inner> std::fmt::Debug for Slot<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

struct State<B: Inner> {
    session: Weak<Session>,
    leaf_id: NodeId,
    placeholder: Primitive<B>,
    /// What stands for the gradient that was taken: one element, a NaN, of the parameter's rank.
    mark: Primitive<B>,
    /// Tells hooks that it was disarmed, when the slot is gone.
    disarmed: Arc<AtomicBool>,
    /// The leaf of the parameter, while it is armed: Burn frees no graph in which somebody holds a
    /// node.
    leaf: Option<Tracked<B>>,
    weight: Weight<B>,
    purpose: Purpose,
    /// Gradients of earlier micro-batches.
    sum: Option<Primitive<B>>,
    /// The gradient was taken: stepped with, or added to the sum, or sent to the other replicas.
    taken: bool,
    /// It was not one to step with.
    is_skipped: bool,
    /// It is on its way, and the weight is as it was.
    in_flight: bool,
    /// Another gradient came after that.
    second: bool,
    /// Stepped where all gradients exist.
    is_late: bool,
    /// Read, on a tape or not.
    is_used: bool,
    /// A mapper has visited the parameter.
    was_mapped: bool,
    /// Used on the model's tape, outside of every scope that backward computes again.
    used_directly: bool,
    /// Scopes that use it.
    scopes: usize,
    ended: Option<Ended>,
    /// The weight before and after the step, as copies of the model hold it.
    snapshots: [Weak<Snapshot<B>>; 2],
    /// Copies on other devices.
    moved: Vec<Weak<Snapshot<B>>>,
}

impl<B: Inner> State<B> {
    /// Not armed, and without a weight.
    fn unarmed(leaf_id: NodeId, placeholder: Primitive<B>, mark: Primitive<B>) -> Self {
        Self {
            session: Weak::new(),
            leaf_id,
            placeholder,
            mark,
            disarmed: Arc::default(),
            leaf: None,
            weight: Weight::Elsewhere,
            purpose: Purpose::Step,
            sum: None,
            taken: false,
            is_skipped: false,
            in_flight: false,
            second: false,
            is_late: false,
            is_used: false,
            was_mapped: false,
            used_directly: false,
            scopes: 0,
            ended: Some(Ended::Finished),
            snapshots: [Weak::new(), Weak::new()],
            moved: Vec::new(),
        }
    }

    /// Returns the leaf as well.
    fn arm(weight: Primitive<B>, session: &Arc<Session>) -> (Self, Tracked<B>) {
        let mark = placeholder_element::<B>(&weight);
        let placeholder = B::float_expand(mark.clone(), weight.shape());
        let leaf = <Tracked<B>>::new(placeholder.clone()).require_grad();
        let state = Self {
            session: Arc::downgrade(session),
            leaf: Some(leaf.clone()),
            weight: Weight::Bare(weight),
            ended: None,
            ..Self::unarmed(leaf.id(), placeholder, mark)
        };
        (state, leaf)
    }

    fn has_weight(&self) -> bool {
        !matches!(self.weight, Weight::Elsewhere)
    }

    /// A gradient, with those of earlier micro-batches, as Burn's accumulator adds them.
    fn summed(&mut self, grad: Primitive<B>) -> Primitive<B> {
        match self.sum.take() {
            Some(sum) => B::float_add(sum, grad),
            None => grad,
        }
    }

    fn is_after_step(&self) -> bool {
        self.taken && !self.is_skipped && !self.in_flight && self.purpose == Purpose::Step
    }
}

/// Where the weight is.
enum Weight<B: Inner> {
    /// Not on the tape yet, or no longer.
    Bare(Primitive<B>),
    /// On the tape. The leaf hook's primitive is the weight, so that nobody else needs to hold it.
    Hooked(Tracked<B>),
    /// In the hands of the optimizer, or given back to its `Param`.
    Elsewhere,
}

/// How an arming has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By `step`, or by `accumulate`.
    Finished,
    /// By `disarm`.
    Disarmed,
    /// Another model was armed or finished in its place. The slot keeps the weight.
    Abandoned,
}

/// The weight at the moment at which a copy of the model was taken.
#[derive(Debug)]
pub(crate) struct Snapshot<B: Inner> {
    pub(crate) weight: Primitive<B>,
    pub(crate) after_step: bool,
}

/// What became of the gradient of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) taken: bool,
    pub(crate) skipped: bool,
    pub(crate) second: bool,
    pub(crate) late: bool,
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
        };
        (slot, leaf)
    }

    /// A slot of its own for a copy of a model whose reparameterizations stay with it from step to
    /// step.
    pub(crate) fn unarmed_twin(&self) -> Self {
        let state = self.state();
        let twin = State::unarmed(state.leaf_id, state.placeholder.clone(), state.mark.clone());
        Self {
            id: self.id,
            path: self.path.clone(),
            fns: self.fns,
            mapper: self.mapper.clone(),
            state: Mutex::new(twin),
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

    /// Ignores poisoning: the session knows of a step that has panicked.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        lock(&self.state)
    }

    /// Whoever looks at the weight waits for the gradient that it is to be stepped with.
    fn reduced(&self) -> MutexGuard<'_, State<B>> {
        let state = self.state();
        if !state.in_flight {
            return state;
        }
        let session = state.session.upgrade();
        drop(state);
        let session = session.unwrap_or_else(|| {
            panic!(
                "gradient release: the optimizer of parameter {} was dropped before `step`, while \
                 its gradient was on its way to the other replicas; load the last checkpoint",
                self.id
            )
        });
        expect(session.wait_for_reductions());
        self.state()
    }

    pub(crate) fn fate(&self) -> Fate {
        let state = self.state();
        Fate {
            taken: state.taken,
            skipped: state.is_skipped,
            second: state.second,
            late: state.is_late,
        }
    }

    /// Whether the arming goes on.
    pub(crate) fn is_armed(&self) -> bool {
        let state = self.state();
        let session = state.session.upgrade();
        state.ended.is_none() && session.is_some_and(|session| session.is_armed())
    }

    pub(crate) fn weight(&self) -> Primitive<B> {
        self.reduced().weight.get(self.id)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    pub(crate) fn has_weight(&self) -> bool {
        self.state().has_weight()
    }

    /// The weight as it is now, for a copy of the model. None after the arming: the `Param` has it.
    pub(crate) fn snapshot(&self) -> Option<Arc<Snapshot<B>>> {
        let mut state = self.reduced();
        if !state.has_weight() {
            return None;
        }
        let after_step = state.is_after_step();
        let kept = &mut state.snapshots[usize::from(after_step)];
        if let Some(snapshot) = kept.upgrade() {
            return Some(snapshot);
        }
        let weight = state.weight.get(self.id);
        let snapshot = Arc::new(Snapshot { weight, after_step });
        state.snapshots[usize::from(after_step)] = Arc::downgrade(&snapshot);
        Some(snapshot)
    }

    /// A copy on another device.
    pub(crate) fn moved(&self, weight: Primitive<B>) -> Option<Arc<Snapshot<B>>> {
        let mut state = self.state();
        let after_step = state.is_after_step();
        let copy = Arc::new(Snapshot { weight, after_step });
        state.moved.retain(|moved| moved.strong_count() > 0);
        state.moved.push(Arc::downgrade(&copy));
        Some(copy)
    }

    /// Whether this is still the weight.
    pub(crate) fn is_current(&self, snapshot: &Snapshot<B>) -> bool {
        let state = self.state();
        state.ended.is_none() && state.has_weight() && snapshot.after_step == state.is_after_step()
    }

    /// The weight of a model of which only the placeholder is known, if there is only one it can
    /// be. The model that is armed and its copies have the leaf of the slot; `is_leaf` says whether
    /// it is that.
    pub(crate) fn weight_behind(&self, is_leaf: bool) -> Option<Primitive<B>> {
        let state = self.reduced();
        let mut copies: Vec<_> = state.snapshots.iter().filter_map(Weak::upgrade).collect();
        if !is_leaf {
            copies.extend(state.moved.iter().filter_map(Weak::upgrade));
        }
        if is_leaf && state.has_weight() {
            let same = copies
                .iter()
                .all(|copy| copy.after_step == state.is_after_step());
            return same.then(|| state.weight.get(self.id));
        }
        match &copies[..] {
            [copy] => Some(copy.weight.clone()),
            _ => None,
        }
    }

    /// The parameter on the model's tape.
    pub(crate) fn on_tape(self: &Arc<Self>, directly: bool) -> Tracked<B> {
        let session = self.session();
        let place: Place = (self.id, false);
        let order = session.as_ref().map(|session| session.order_of(place));
        let (order, is_known) = order.unwrap_or((1, false));
        let mut state = self.reduced();
        state.used_directly |= directly;
        state.scopes += usize::from(!directly);
        state.is_late = !is_known;
        if let Weight::Hooked(hooked) = &state.weight {
            return hooked.clone();
        }
        let weight = state.weight.take(self.id);
        let below = B::ladder().rung(order - 1, &weight.device());
        let owner: Weak<dyn HookOwner<B>> = Arc::<Self>::downgrade(self);
        let leaf = state
            .leaf
            .as_ref()
            .expect("who has its weight has its leaf");
        let hooked = leaf_hook::<B>(weight, leaf, below, owner, &state.disarmed);
        if let Some(session) = session {
            session.hook_made(hooked.id(), place, order);
        }
        state.weight = Weight::Hooked(hooked.clone());
        hooked
    }

    pub(crate) fn mark_used(&self) {
        self.state().is_used = true;
    }

    pub(crate) fn mark_mapped(&self) {
        self.state().was_mapped = true;
    }

    /// Whether the scope that uses the parameter is the only use, so that it may step it at once.
    /// Of several, nobody knows whether backward reaches them all; the hook does.
    pub(crate) fn is_for_one_scope(&self) -> bool {
        let state = self.state();
        !state.used_directly && state.scopes == 1 && !state.taken && state.ended.is_none()
    }

    /// Takes the complete gradient, or gives it back if nobody wants it.
    pub(crate) fn take_gradient(&self, grad: Primitive<B>) -> Result<(), Primitive<B>> {
        let mut state = self.state();
        let session = state.session.upgrade();
        let is_armed = |session: &Arc<Session>| session.is_armed() && state.ended.is_none();
        let Some(session) = session.filter(is_armed) else {
            return Err(grad);
        };
        if state.taken {
            state.second = true;
            return Err(grad);
        }
        match state.purpose {
            Purpose::Step if session.stepper().gradients.stops() => {
                // `step` is going to be refused. The sum stays, so that it can be handed back.
                state.weight = Weight::Bare(state.weight.take(self.id));
                (state.taken, state.is_skipped) = (true, true);
                return Ok(());
            }
            Purpose::Step => {
                let grad = state.summed(grad);
                match session.in_flight() {
                    None => expect(self.step_with(&mut state, &session, Some(grad))),
                    Some(in_flight) => {
                        state.taken = true;
                        state.in_flight = true;
                        // To make room, others are stepped.
                        drop(state);
                        expect(session.reduce(in_flight, self.id, flat::<B>(grad)));
                    }
                }
                return Ok(());
            }
            Purpose::Measure => {
                // The sum stays for the pass that steps.
                let grad = match &state.sum {
                    Some(sum) => B::float_add(sum.clone(), grad),
                    None => grad,
                };
                match session.in_flight() {
                    None => (self.fns.measure)(&mut session.stepper(), self.id, grad),
                    Some(in_flight) => {
                        state.taken = true;
                        state.in_flight = true;
                        state.weight = Weight::Bare(state.weight.take(self.id));
                        // To make room, others are measured.
                        drop(state);
                        expect(session.reduce(in_flight, self.id, flat::<B>(grad)));
                        return Ok(());
                    }
                }
            }
            Purpose::Hold => {
                state.sum = Some(state.summed(grad));
                Progress::count(&session.progress.held);
            }
        }
        state.taken = true;
        // Another forward pass gets another hook.
        state.weight = Weight::Bare(state.weight.take(self.id));
        Ok(())
    }

    /// Without a gradient, another replica steps the parameter. Where this one has a gradient all
    /// the same, it judges it as the other does.
    fn step_with(
        &self,
        state: &mut State<B>,
        session: &Session,
        grad: Option<Primitive<B>>,
    ) -> Result<(), ReleaseError> {
        let mut stepper = session.stepper();
        let mut weight = state.weight.take(self.id);
        stepper.stepping = true;
        let reduction = session.in_flight().map(InFlight::reduction);
        let is_owner = reduction.is_none_or(|reduction| reduction.is_owner(self.id));
        if let Some(grad) = grad {
            let is_in_place = weight.can_mut() && is_owner;
            let step = self.fns.step;
            let stepped = step(&mut stepper, self.id, &self.path, weight, grad, is_owner);
            weight = stepped.weight;
            state.is_skipped = stepped.is_skipped;
            if is_in_place && !stepped.is_skipped {
                Progress::count(&session.progress.in_place);
            }
        }
        if let Some(in_flight) = session.in_flight()
            && in_flight.reduction().is_sharded()
        {
            let shape = weight.shape();
            let weight_of_owner = in_flight.weight_from_owner(self.id, flat::<B>(weight))?;
            weight = shaped::<B>(weight_of_owner, shape);
        }
        stepper.stepping = false;
        if !state.is_skipped {
            Progress::count(&session.progress.stepped);
        }
        state.weight = Weight::Bare(weight);
        state.taken = true;
        Ok(())
    }

    /// The gradient of the hook on the model's tape, if there is one.
    pub(crate) fn remove_grad(&self, grads: &mut Gradients) -> Option<Primitive<B>> {
        match &self.state().weight {
            Weight::Hooked(hooked) => hooked.grad_remove(grads),
            _ => None,
        }
    }

    fn is_at(&self, hook: NodeId) -> bool {
        matches!(&self.state().weight, Weight::Hooked(hooked) if hooked.id() == hook)
    }

    /// Leaves under the leaf what says that the gradient was taken: `GradientsParams::from_grads`
    /// finds it.
    pub(crate) fn mark_taken(&self, grads: &mut Gradients) {
        let (leaf, mark) = (self.leaf_id(), self.state().mark.clone());
        grads.register::<B>(leaf, mark);
    }
}

impl<B: Inner> HookOwner<B> for Slot<B> {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.session() {
            session.learn(hook, (self.id, false), checkpointer);
        }
        if !self.is_at(hook) {
            // A scope has stepped the parameter, and nothing is left.
            return self.fate().taken && !self.has_ended();
        }
        match self.remove_grad(grads) {
            Some(grad) => match self.take_gradient(grad) {
                Ok(()) => {
                    self.mark_taken(grads);
                    true
                }
                Err(grad) => {
                    grads.register::<B>(self.leaf_id(), grad);
                    true
                }
            },
            // Only scopes use the parameter, and none had a gradient for it.
            None => true,
        }
    }
}

impl<B: Inner> Weight<B> {
    fn get(&self, id: ParamId) -> Primitive<B> {
        match self {
            Weight::Bare(weight) => weight.clone(),
            Weight::Hooked(hooked) => hooked.primitive().clone(),
            Weight::Elsewhere => panic!(
                "gradient release: parameter {id} was lost when its optimizer panicked in the \
                 middle of a step; load the last checkpoint"
            ),
        }
    }

    fn take(&mut self, id: ParamId) -> Primitive<B> {
        match std::mem::replace(self, Weight::Elsewhere) {
            Weight::Bare(weight) => weight,
            Weight::Hooked(hooked) => hooked.into_primitive(),
            Weight::Elsewhere => Weight::<B>::Elsewhere.get(id),
        }
    }
}

impl<B: Inner> ArmedSlot for Slot<B> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn leaf_id(&self) -> u64 {
        Self::leaf_id(self).value
    }

    fn fate(&self) -> Fate {
        Self::fate(self)
    }

    fn take_sum(&self) -> Option<DispatchTensor> {
        Some(plain::<B>(self.state().sum.take()?))
    }

    fn sum(&self) -> Option<DispatchTensor> {
        Some(plain::<B>(self.state().sum.clone()?))
    }

    fn has_sum(&self) -> bool {
        self.state().sum.is_some()
    }

    fn is_used(&self) -> bool {
        self.state().is_used
    }

    fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>) {
        let mut state = self.state();
        state.purpose = purpose;
        // What is there from an arming before stays.
        state.sum = match (state.sum.take(), sum.map(primitive_of::<B>)) {
            (Some(there), Some(more)) => Some(B::float_add(there, more)),
            (there, more) => there.or(more),
        };
    }

    fn arm_again(&self, session: &Arc<Session>, base: DispatchTensor) -> DispatchTensor {
        let autodiff = base.autodiff;
        let Some(BackendTensor::Autodiff(weight)) = B::unwrap(base.kind) else {
            panic!(
                "gradient release: parameter {} has moved to another backend",
                self.id
            );
        };
        let (state, leaf) = State::arm(weight.into_primitive(), session);
        *self.state() = state;
        DispatchTensor {
            kind: B::wrap(BackendTensor::Autodiff(leaf)),
            autodiff,
        }
    }

    fn has_ended(&self) -> bool {
        Self::has_ended(self)
    }

    fn end(&self, how: Ended) -> DispatchTensor {
        let mut state = self.state();
        state.ended = Some(how);
        state
            .disarmed
            .store(how == Ended::Disarmed && !state.taken, Ordering::Relaxed);
        state.leaf = None;
        plain::<B>(state.weight.take(self.id))
    }

    fn reduced(&self, session: &Session, grad: Option<Tensor<1>>) -> Result<(), ReleaseError> {
        let mut state = self.state();
        let shape = state.placeholder.shape();
        let grad = grad.map(|grad| shaped::<B>(grad, shape));
        match (state.purpose, grad) {
            (Purpose::Measure, Some(grad)) => {
                (self.fns.measure)(&mut session.stepper(), self.id, grad);
            }
            (_, grad) => self.step_with(&mut state, session, grad)?,
        }
        state.in_flight = false;
        Ok(())
    }

    fn rest(&self) {
        let mut state = self.state();
        state.taken = false;
        state.is_skipped = false;
        state.second = false;
        state.is_used = false;
        state.used_directly = false;
        state.scopes = 0;
        if state.has_weight() {
            // Another forward pass gets another hook.
            state.weight = Weight::Bare(state.weight.take(self.id));
        }
    }

    fn step_now(&self, grad: DispatchTensor) {
        let taken = self.take_gradient(primitive_of::<B>(grad));
        assert!(
            taken.is_ok(),
            "only what is armed, and not stepped, has one"
        );
    }

    fn watch(&self) {
        self.state().was_mapped = false;
    }

    fn was_mapped(&self) -> bool {
        self.state().was_mapped
    }

    fn has_stepped_copy(&self) -> bool {
        let state = self.state();
        let copies = state.snapshots.iter().chain(&state.moved);
        copies.filter_map(Weak::upgrade).any(|copy| copy.after_step)
    }

    fn abandon(&self) {
        self.state().ended = Some(Ended::Abandoned);
    }

    fn mapper(&self) -> Arc<dyn Any + Send + Sync> {
        self.mapper.clone()
    }
}

fn plain<B: Inner>(primitive: Primitive<B>) -> DispatchTensor {
    DispatchTensor {
        kind: B::wrap(BackendTensor::Float(primitive)),
        autodiff: DispatchAutodiffContext::Disabled,
    }
}

fn primitive_of<B: Inner>(tensor: DispatchTensor) -> Primitive<B> {
    match B::unwrap(tensor.kind) {
        Some(BackendTensor::Float(primitive)) => primitive,
        Some(BackendTensor::Autodiff(tracked)) => tracked.into_primitive(),
        _ => {
            panic!("gradient release: a sum of gradients is on another backend than its parameter")
        }
    }
}

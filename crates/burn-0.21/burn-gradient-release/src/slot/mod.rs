//! The slot that owns an armed parameter between arming and the end of its optimizer step.

pub(crate) mod armed_set;
pub(crate) mod reduction;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, Weak},
    thread::{self, ThreadId},
};

use burn::{
    module::ParamId,
    tensor::{
        DType, Shape, TensorMetadata,
        backend::Backend,
        ops::{Device, FloatTensor},
    },
};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::{
    slot::reduction::{InFlight, Receiver},
    tape::consumers::{Consumers, Owner, When},
    tape::{self, AdTensor},
    util::lock::lock,
    util::progress::Progress,
    util::stale_copy::StaleCopyGuard,
};

/// Steps one parameter: takes its weight, and its gradient unless another replica has it. Returns
/// the weight to go on with.
pub(crate) type Release<B> =
    Box<dyn FnOnce(FloatTensor<B>, Option<FloatTensor<B>>) -> Step<FloatTensor<B>> + Send>;

/// Looks at the gradient of one parameter.
pub(crate) type Inspector<B> = Box<dyn FnOnce(FloatTensor<B>) + Send>;

/// Outcome of the step of a weight.
pub(crate) enum Step<W> {
    /// The new weight.
    Taken(W),
    /// The old weight: its gradient must not be stepped with.
    Skipped(W),
    /// The old weight: neither this nor any later parameter is stepped.
    Stopped(W),
}

impl<W> Step<W> {
    pub(crate) fn map<V>(self, map: impl FnOnce(W) -> V) -> Step<V> {
        match self {
            Self::Taken(weight) => Step::Taken(map(weight)),
            Self::Skipped(weight) => Step::Skipped(map(weight)),
            Self::Stopped(weight) => Step::Stopped(map(weight)),
        }
    }
}

/// Action of a slot on the complete gradient, after adding it to the held sum.
pub(crate) enum Action<B: Backend> {
    /// Steps the parameter.
    Step(Release<B>),
    /// Holds it for a later micro-batch.
    Hold,
    /// Looks at it, and keeps the held sum.
    Inspect(Inspector<B>),
    /// Drops it: the parameter is frozen.
    Drop,
}

/// One armed parameter.
pub(crate) struct Slot<B: Backend> {
    param: ParamId,
    shape: Shape,
    dtype: DType,
    device: Device<B>,
    progress: Arc<Progress>,
    guard: Arc<StaleCopyGuard>,
    /// Reduces gradients over the replicas, if there are any, before anything else is done to them.
    in_flight: Option<Arc<InFlight<B>>>,
    /// Dropped with the one owner of the value: a new value would have nowhere to go.
    presence: Weak<()>,
    consumers: Arc<Consumers<B>>,
    state: Mutex<State<B>>,
    /// The thread that runs the optimizer's step, under the lock of `state`: other threads wait for
    /// the new value, and this one would wait for itself.
    stepping: Mutex<Option<ThreadId>>,
}

struct State<B: Backend> {
    /// The parameter's leaf with its current value. Taken only while the step runs.
    leaf: Option<AdTensor<B>>,
    phase: Phase<B>,
    /// The sum of the gradients of earlier micro-batches, until it is stepped with.
    held: Option<FloatTensor<B>>,
    /// Left among the gradients of the backward pass in which the slot acted, until they are asked
    /// for this gradient, as the caller of an optimizer does.
    receipt: Option<AdTensor<B>>,
}

enum Phase<B: Backend> {
    /// Armed, no gradient yet.
    Waiting(Action<B>),
    /// The gradient is in flight between the replicas.
    Reducing(Reduced<B>),
    /// The action is running, or panicked.
    Acting,
    /// Stepped inside backward.
    Stepped(When),
    /// The gradient was added to the held sum inside backward.
    Held,
    /// The gradient came inside backward and is gone; the value is as it was.
    Untouched,
    /// The step is over without this parameter: an ordinary leaf again.
    Disarmed,
    /// Stepped inside backward by an optimizer that was dropped before it finished the step.
    Abandoned,
    /// The optimizer has finished the step and handed the value on.
    Closed,
}

/// Marks this thread as the one that runs the optimizer's step, until it is dropped.
struct Stepping<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Stepping<'a> {
    fn begin(thread: &'a Mutex<Option<ThreadId>>) -> Self {
        *lock(thread) = Some(thread::current().id());
        Self(thread)
    }
}

impl Drop for Stepping<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

/// Action on a gradient once it is reduced over all replicas.
enum Reduced<B: Backend> {
    Step(Release<B>, When),
    Inspect(Inspector<B>),
}

/// Purpose for which a parameter is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// None: it can be armed.
    Free,
    /// A step, or a micro-batch, that is under way.
    Open,
    /// A step that can no longer be finished.
    Abandoned,
}

impl<B: Backend> Slot<B> {
    /// A slot that waits for the gradient of `leaf`, as long as there is an owner's `presence`.
    pub(crate) fn new(
        param: ParamId,
        leaf: AdTensor<B>,
        action: Action<B>,
        progress: Arc<Progress>,
        in_flight: Option<Arc<InFlight<B>>>,
        presence: Weak<()>,
        consumers: Arc<Consumers<B>>,
    ) -> Self {
        Self {
            param,
            shape: leaf.shape(),
            dtype: leaf.dtype(),
            device: B::float_device(&leaf.primitive),
            progress,
            guard: Arc::new(StaleCopyGuard::new(param)),
            in_flight,
            presence,
            consumers,
            state: Mutex::new(State {
                leaf: Some(leaf),
                phase: Phase::Waiting(action),
                held: None,
                receipt: None,
            }),
            stepping: Mutex::new(None),
        }
    }

    /// # Panics
    ///
    /// Inside the optimizer's step of this parameter: the optimizer has its value.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        let is_stepping = *lock(&self.stepping) == Some(thread::current().id());
        assert!(
            !is_stepping,
            "gradient release: the optimizer reads parameter {} from an armed model while it steps \
             that parameter, whose value was handed to it; use the tensor that `step` is given, or a \
             clone of the model taken before `arm`",
            self.param
        );
        // Ignores poisoning: `Phase::Acting` records the panic of an optimizer.
        lock(&self.state)
    }

    pub(crate) fn param(&self) -> ParamId {
        self.param
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape.clone()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn device(&self) -> Device<B> {
        self.device.clone()
    }

    /// Purpose for which the parameter is armed.
    pub(crate) fn claim(&self) -> Claim {
        match self.state().phase {
            Phase::Waiting(_)
            | Phase::Reducing(_)
            | Phase::Acting
            | Phase::Stepped(_)
            | Phase::Held
            | Phase::Untouched => Claim::Open,
            Phase::Abandoned => Claim::Abandoned,
            Phase::Disarmed | Phase::Closed => Claim::Free,
        }
    }

    /// Moment at which the parameter was stepped inside backward, if it was.
    pub(crate) fn stepped(&self) -> Option<When> {
        match self.state().phase {
            Phase::Stepped(when) => Some(when),
            _ => None,
        }
    }

    /// Whether the gradient came inside backward and left the value as it was.
    pub(crate) fn is_untouched(&self) -> bool {
        matches!(self.state().phase, Phase::Untouched)
    }

    /// Whether the gradient came inside backward, and is gone.
    pub(crate) fn has_acted(&self) -> bool {
        matches!(self.state().phase, Phase::Stepped(_) | Phase::Untouched)
    }

    /// The leaf with the current value, and a guard if plain Burn's copy would not have that value.
    ///
    /// # Panics
    ///
    /// After the optimizer handed the value on to another copy of the model, and after a panic in
    /// the middle of the parameter's step: there is no valid value then.
    pub(crate) fn read(&self) -> (AdTensor<B>, Option<Arc<StaleCopyGuard>>) {
        let state = self.state();
        let guard = matches!(state.phase, Phase::Stepped(_)).then(|| self.guard.clone());
        match (&state.leaf, &state.phase) {
            (_, Phase::Closed) => panic!(
                "parameter {} is read from a model that was armed, while a copy of that model was \
                 passed to `step`, which returned the stepped weights; use the model returned by \
                 `step`, and clone a model that is to be kept before or after it is armed and \
                 stepped",
                self.param
            ),
            (Some(leaf), _) => (leaf.clone(), guard),
            (None, _) => panic!(
                "the step of parameter {} panicked and its value is lost; go back to the last \
                 checkpoint",
                self.param
            ),
        }
    }

    /// Whether there is a value to [read](Self::read).
    pub(crate) fn has_value(&self) -> bool {
        self.state().leaf.is_some()
    }

    /// Whether the slot acted on a gradient that its backward pass was never asked for.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.state().receipt.is_some()
    }

    /// Lends the slot the sum of the gradients of earlier micro-batches.
    pub(crate) fn hold(&self, sum: FloatTensor<B>) {
        self.state().held = Some(sum);
    }

    /// The sum of the gradients of earlier micro-batches, as long as it is here.
    pub(crate) fn held(&self) -> Option<FloatTensor<B>> {
        self.state().held.clone()
    }

    /// Ends the wait of a parameter that was not stepped; takes the sum of gradients it holds.
    pub(crate) fn withdraw(&self) -> Option<FloatTensor<B>> {
        let held = self.state().held.take();
        self.end();
        held
    }

    /// Makes the consumers of the parameter report to `owner`.
    pub(crate) fn hand_back_consumers(&self, owner: Option<Weak<dyn Owner>>) {
        self.consumers.replace_owner(owner);
    }

    /// Ends the step of a parameter that was stepped inside backward: takes its value.
    pub(crate) fn close(&self) -> FloatTensor<B> {
        let mut state = self.state();
        state.phase = Phase::Closed;
        self.guard.finish();
        let leaf = state
            .leaf
            .take()
            .expect("an interrupted step is refused before it is closed");
        leaf.primitive
    }

    /// Ends the arming, whether its step is finished or not.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        let ended = match state.phase {
            Phase::Waiting(_) | Phase::Reducing(_) | Phase::Held | Phase::Untouched => {
                Phase::Disarmed
            }
            // The sum could not be added: the value is as it was.
            Phase::Acting if state.leaf.is_some() => Phase::Disarmed,
            Phase::Stepped(_) => Phase::Abandoned,
            Phase::Acting | Phase::Disarmed | Phase::Abandoned | Phase::Closed => return,
        };
        let action = mem::replace(&mut state.phase, ended);
        let held = state.held.take();
        // Without the lock: dropping the action may run code of the optimizer.
        drop(state);
        drop((action, held));
    }

    /// Acts on the gradient to step with, or to measure.
    fn finish(
        &self,
        mut state: MutexGuard<'_, State<B>>,
        reduced: Reduced<B>,
        grad: Option<FloatTensor<B>>,
    ) {
        match reduced {
            Reduced::Step(release, when) => {
                let mut leaf = state
                    .leaf
                    .take()
                    .expect("a parameter that is to be stepped has its value");
                let stepping = Stepping::begin(&self.stepping);
                let stepped = release(leaf.primitive, grad);
                drop(stepping);
                let (value, phase, is_part_of_step) = match stepped {
                    Step::Taken(value) => (value, Phase::Stepped(when), true),
                    Step::Skipped(value) => (value, Phase::Untouched, true),
                    Step::Stopped(value) => (value, Phase::Untouched, false),
                };
                leaf.primitive = value;
                state.leaf = Some(leaf);
                state.phase = phase;
                if is_part_of_step {
                    self.progress.end();
                }
            }
            // A panic in there leaves nothing half done.
            Reduced::Inspect(inspect) => {
                state.phase = Phase::Untouched;
                if let Some(grad) = grad {
                    inspect(grad);
                }
            }
        }
    }
}

impl<B: Backend> Receiver<B> for Slot<B> {
    fn reduced(&self, grad: Option<FloatTensor<B>>) {
        let mut state = self.state();
        match mem::replace(&mut state.phase, Phase::Acting) {
            Phase::Reducing(reduced) => self.finish(state, reduced, grad),
            // The arming was taken back.
            phase => state.phase = phase,
        }
    }
}

impl<B: Backend> Owner for Slot<B> {
    fn is_waiting(&self) -> bool {
        matches!(self.state().phase, Phase::Waiting(_))
    }

    fn ask(&self, grads: &mut Gradients) {
        let receipt = &mut self.state().receipt;
        receipt.take_if(|receipt| grads.remove::<B>(receipt).is_some());
    }

    fn act(self: Arc<Self>, node: NodeId, grads: &mut Gradients, when: When) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Waiting(_)) || self.presence.strong_count() == 0 {
            // The value has no owner any more (the model was mapped or dropped after arming): the
            // gradient stays where an ordinary one would be.
            return;
        }
        let leaf = state.leaf.as_ref();
        let Some(grad) = leaf.and_then(|leaf| tape::take(node, leaf, grads)) else {
            return;
        };
        let Phase::Waiting(action) = mem::replace(&mut state.phase, Phase::Acting) else {
            unreachable!("only a waiting slot acts")
        };
        let receipt = tape::off_tape::<B>(self.consumers.placeholder());
        grads.register::<B>(receipt.node.id, receipt.primitive.clone());
        state.receipt = Some(receipt);
        let held = match &action {
            Action::Inspect(_) => state.held.clone(),
            _ => state.held.take(),
        };
        // The order in which Burn's accumulator adds.
        let add = |grad| match held {
            Some(held) => B::float_add(held, grad),
            None => grad,
        };
        let reduced = match action {
            Action::Hold => {
                self.progress.begin();
                state.held = Some(add(grad));
                state.phase = Phase::Held;
                self.progress.end();
                return;
            }
            Action::Drop => {
                state.phase = Phase::Untouched;
                return;
            }
            Action::Step(release) => {
                self.progress.begin();
                Reduced::Step(release, when)
            }
            Action::Inspect(inspect) => Reduced::Inspect(inspect),
        };
        let grad = add(grad);
        match &self.in_flight {
            None => self.finish(state, reduced, Some(grad)),
            Some(in_flight) => {
                state.phase = Phase::Reducing(reduced);
                drop(state);
                in_flight.push(self.param, grad, self.clone());
            }
        }
    }

    fn expect(&self) {
        let is_reduced =
            |action: &Action<B>| matches!(action, Action::Step(_) | Action::Inspect(_));
        if let Some(in_flight) = &self.in_flight
            && self.consumers.is_on_tape()
            && matches!(&self.state().phase, Phase::Waiting(action) if is_reduced(action))
        {
            in_flight.expect(self.param);
        }
    }

    fn begin_part(&self) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.begin_part();
        }
    }

    fn wait_for_reductions(&self) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.wait_for_all();
        }
    }

    fn drop_reductions(&self) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.drop_all();
        }
    }

    fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

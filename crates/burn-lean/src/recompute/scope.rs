//! The parameters of the scope that runs on this thread.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;

use crate::backend::{Inner, Primitive, Tracked};
use crate::hook_orders::HookKey;
use crate::lock::lock;
use crate::slot::Slot;
use crate::tape::{HookOwner, leaf_hook, rung};

/// The way in which this thread reads armed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On the tape of the model.
    Tape,
    /// Without a tape: a scope runs, and the parameters that it uses are noted.
    Recording,
    /// On the tape of a recomputed scope.
    Replaying,
}

struct State {
    mode: Mode,
    /// Whether the recomputed scope is not nested in another one.
    is_outermost: bool,
    /// The parameters used, by the address of their slot: `Arc<Slot<B>>` or
    /// `Arc<ScopedParameter<B>>`.
    slots: HashMap<usize, Box<dyn Any>>,
    /// The addresses in the order of first use.
    order: Vec<usize>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::new(Mode::Tape));
}

impl State {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            is_outermost: false,
            slots: HashMap::new(),
            order: Vec::new(),
        }
    }
}

pub(crate) fn mode() -> Mode {
    STATE.with_borrow(|state| state.mode)
}

/// Runs with another state, and returns that state. Restores the old state afterwards, also after a
/// panic.
fn within<R>(state: State, run: impl FnOnce() -> R) -> (R, State) {
    struct Back(Option<State>);
    impl Drop for Back {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                STATE.replace(before);
            }
        }
    }
    let mut back = Back(Some(STATE.replace(state)));
    let result = run();
    let before = back.0.take().expect("the state is taken once");
    (result, STATE.replace(before))
}

/// Runs a scope without a tape, and returns which armed parameters it has used, in the order of
/// their use.
pub(crate) fn recording<R>(run: impl FnOnce() -> R) -> (R, Vec<Box<dyn Any>>) {
    let (result, mut state) = within(State::new(Mode::Recording), run);
    let slots = state.order.iter().filter_map(|at| state.slots.remove(at));
    (result, slots.collect())
}

/// Runs with the weights of armed parameters as constants.
pub(crate) fn without_tape<R>(run: impl FnOnce() -> R) -> R {
    recording(run).0
}

/// Notes the use of an armed parameter in a scope that runs without a tape.
pub(crate) fn record<B: Inner>(slot: &Arc<Slot<B>>) {
    let at = Arc::as_ptr(slot) as usize;
    STATE.with_borrow_mut(|state| {
        if let Entry::Vacant(entry) = state.slots.entry(at) {
            entry.insert(Box::new(slot.clone()));
            state.order.push(at);
        }
    });
}

/// An armed parameter on the tape of a recomputed scope.
pub(crate) struct ScopedParameter<B: Inner> {
    slot: Arc<Slot<B>>,
    /// The scope is not nested in another one.
    is_outermost: bool,
    state: Mutex<ScopedState<B>>,
}

struct ScopedState<B: Inner> {
    hook: Option<Tracked<B>>,
    taken: bool,
    grad: Option<Primitive<B>>,
}

/// The result of the scope's backward pass for a parameter.
pub(crate) struct ScopedOutcome<B: Inner> {
    pub(crate) slot: Arc<Slot<B>>,
    pub(crate) taken: bool,
    /// The contribution of the scope to the gradient, unless the parameter was stepped.
    pub(crate) grad: Option<Primitive<B>>,
}

impl<B: Inner> ScopedParameter<B> {
    fn state(&self) -> MutexGuard<'_, ScopedState<B>> {
        lock(&self.state)
    }

    pub(crate) fn slot(&self) -> &Arc<Slot<B>> {
        &self.slot
    }

    /// The leaf hook, while its gradient is not complete.
    pub(crate) fn hook(&self) -> Option<NodeId> {
        self.state().hook.as_ref().map(Tracked::<B>::id)
    }

    pub(crate) fn outcome(&self, grads: &mut Gradients) -> ScopedOutcome<B> {
        let mut state = self.state();
        let left = state.hook.take().and_then(|hook| hook.grad_remove(grads));
        ScopedOutcome {
            slot: self.slot.clone(),
            taken: state.taken,
            grad: state.grad.take().or(left),
        }
    }
}

impl<B: Inner> HookOwner<B> for ScopedParameter<B> {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.slot.session() {
            session.learn(hook, HookKey::in_scope(self.slot.id), checkpointer);
        }
        let mut state = self.state();
        // The leaf hook holds the weight: without it, the step can write into the weight's memory.
        let Some(grad) = state.hook.take().and_then(|hook| hook.grad_remove(grads)) else {
            return true;
        };
        if self.is_outermost && self.slot.is_for_one_scope() {
            match self.slot.take_gradient(grad) {
                Ok(()) => state.taken = true,
                Err(grad) => state.grad = Some(grad),
            }
        } else {
            state.grad = Some(grad);
        }
        true
    }
}

/// Runs a scope on a tape of its own. Returns the parameters that it uses.
pub(crate) fn replaying<B: Inner, R>(
    is_outermost: bool,
    run: impl FnOnce() -> R,
) -> (R, Vec<Arc<ScopedParameter<B>>>) {
    let mut state = State::new(Mode::Replaying);
    state.is_outermost = is_outermost;
    let (result, mut state) = within(state, run);
    let params = state.order.iter().filter_map(|at| state.slots.remove(at));
    (
        result,
        params
            .filter_map(|param| Some(*param.downcast().ok()?))
            .collect(),
    )
}

/// Puts a parameter on the tape of the recomputed scope.
pub(crate) fn replayed<B: Inner>(slot: &Arc<Slot<B>>) -> Tracked<B> {
    let at = Arc::as_ptr(slot) as usize;
    if let Some(param) = scoped_parameter(slot) {
        let hook = param.state().hook.clone();
        return hook.expect("a scope runs before its backward pass");
    }
    let session = slot.session();
    let key = HookKey::in_scope(slot.id);
    let order = session
        .as_ref()
        .map_or(1, |session| session.order_of(key).0);
    let weight = slot.weight();
    let below = rung::<B>(order - 1, &weight.device());
    // The scoped parameter takes the gradient. The leaf is only there because a hook needs one.
    let leaf = <Tracked<B>>::new(slot.placeholder()).require_grad();
    let param = Arc::new_cyclic(|param: &Weak<ScopedParameter<B>>| {
        let owner: Weak<dyn HookOwner<B>> = param.clone();
        let hooked = leaf_hook::<B>(weight, &leaf, below, owner, &Arc::default());
        if let Some(session) = session {
            session.hook_made(hooked.id(), key, order);
        }
        ScopedParameter {
            slot: slot.clone(),
            is_outermost: STATE.with_borrow(|state| state.is_outermost),
            state: Mutex::new(ScopedState {
                hook: Some(hooked),
                taken: false,
                grad: None,
            }),
        }
    });
    let hooked = param.state().hook.clone();
    STATE.with_borrow_mut(|state| {
        state.slots.insert(at, Box::new(param));
        state.order.push(at);
    });
    hooked.expect("it was made right now")
}

/// The parameter on the tape of the recomputed scope, if the scope has used it.
fn scoped_parameter<B: Inner>(slot: &Arc<Slot<B>>) -> Option<Arc<ScopedParameter<B>>> {
    let at = Arc::as_ptr(slot) as usize;
    STATE.with_borrow(|state| state.slots.get(&at)?.downcast_ref().cloned())
}

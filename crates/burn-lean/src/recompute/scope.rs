//! The parameters of the scope that runs on this thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{DispatchAutodiffContext, DispatchTensor};
use burn::tensor::GradientCheckpointingStrategy;

use crate::hook_orders::HookKey;
use crate::lock::lock;
use crate::session::Slot;
use crate::tape::{HookOwner, OnTape, leaf, leaf_hook};

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
    /// The parameters used, in the order of first use: the slots of a scope that is recorded, ..
    recorded: Vec<Arc<Slot>>,
    /// .. and those on the tape of one that is replayed.
    replayed: Vec<Arc<ScopedParameter>>,
    /// Their indices, by the address of the slot.
    places: HashMap<usize, usize>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::new(Mode::Tape));
}

impl State {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            is_outermost: false,
            recorded: Vec::new(),
            replayed: Vec::new(),
            places: HashMap::new(),
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
pub(crate) fn recording<R>(run: impl FnOnce() -> R) -> (R, Vec<Arc<Slot>>) {
    let (result, state) = within(State::new(Mode::Recording), run);
    (result, state.recorded)
}

/// Runs with the weights of armed parameters as constants.
pub(crate) fn without_tape<R>(run: impl FnOnce() -> R) -> R {
    recording(run).0
}

/// Notes the use of an armed parameter in a scope that runs without a tape.
pub(crate) fn record(slot: &Arc<Slot>) {
    STATE.with_borrow_mut(|state| {
        let next = state.recorded.len();
        if *state.places.entry(address(slot)).or_insert(next) == next {
            state.recorded.push(slot.clone());
        }
    });
}

pub(crate) fn address(slot: &Arc<Slot>) -> usize {
    Arc::as_ptr(slot) as usize
}

/// An armed parameter on the tape of a recomputed scope.
pub(crate) struct ScopedParameter {
    slot: Arc<Slot>,
    /// The scope is not nested in another one.
    is_outermost: bool,
    state: Mutex<ScopedState>,
}

struct ScopedState {
    hook: Option<OnTape>,
    taken: bool,
    grad: Option<DispatchTensor>,
}

/// The result of the scope's backward pass for a parameter.
pub(crate) struct ScopedOutcome {
    pub(crate) slot: Arc<Slot>,
    pub(crate) taken: bool,
    /// The contribution of the scope to the gradient, unless the parameter was stepped.
    pub(crate) grad: Option<DispatchTensor>,
}

impl ScopedParameter {
    fn state(&self) -> MutexGuard<'_, ScopedState> {
        lock(&self.state)
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The leaf hook, while its gradient is not complete.
    pub(crate) fn hook(&self) -> Option<NodeId> {
        self.state().hook.as_ref().map(OnTape::id)
    }

    pub(crate) fn outcome(&self, grads: &mut Gradients) -> ScopedOutcome {
        let mut state = self.state();
        let hook = state.hook.take();
        let left = hook.and_then(|hook| hook.take_grad(grads));
        ScopedOutcome {
            slot: self.slot.clone(),
            taken: state.taken,
            grad: state.grad.take().or(left),
        }
    }
}

impl HookOwner for ScopedParameter {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.slot.session() {
            session.learn(hook, HookKey::in_scope(self.slot.id()), checkpointer);
        }
        let mut state = self.state();
        // The leaf hook holds the weight: without it, the step can write into the weight's memory.
        let hook = state.hook.take();
        let Some(grad) = hook.and_then(|hook| hook.take_grad(grads)) else {
            return true;
        };
        if self.is_outermost && self.slot.is_for_one_scope() {
            state.grad = self.slot.take_gradient(grad);
            state.taken = state.grad.is_none();
        } else {
            state.grad = Some(grad);
        }
        true
    }
}

/// Runs a scope on a tape of its own. Returns the parameters that it uses.
pub(crate) fn replaying<R>(
    is_outermost: bool,
    run: impl FnOnce() -> R,
) -> (R, Vec<Arc<ScopedParameter>>) {
    let mut state = State::new(Mode::Replaying);
    state.is_outermost = is_outermost;
    let (result, state) = within(state, run);
    (result, state.replayed)
}

/// Puts a parameter on the tape of the recomputed scope.
pub(crate) fn replayed(slot: &Arc<Slot>) -> DispatchTensor {
    if let Some(param) = scoped_parameter(slot) {
        let hook = param.state().hook.as_ref().map(OnTape::get);
        return hook.expect("a scope runs before its backward pass");
    }
    let session = slot.session();
    let key = HookKey::in_scope(slot.id());
    let order = session
        .as_ref()
        .map_or(1, |session| session.orders().order_of(key).0);
    // The scoped parameter takes the gradient. The leaf is only there because a hook needs one.
    let autodiff = DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::default());
    let leaf = leaf(slot.placeholder(), autodiff);
    let mut made = None;
    let param = Arc::new_cyclic(|param: &Weak<ScopedParameter>| {
        let owner: Weak<dyn HookOwner> = param.clone();
        let hooked = leaf_hook(slot.weight(), &leaf, order - 1, owner, Arc::default());
        if let Some(session) = session {
            session.hook_made(&hooked, key, order);
        }
        made = Some(hooked.clone());
        ScopedParameter {
            slot: slot.clone(),
            is_outermost: STATE.with_borrow(|state| state.is_outermost),
            state: Mutex::new(ScopedState {
                hook: Some(OnTape::new(hooked)),
                taken: false,
                grad: None,
            }),
        }
    });
    STATE.with_borrow_mut(|state| {
        state.places.insert(address(slot), state.replayed.len());
        state.replayed.push(param);
    });
    made.expect("it was made right now")
}

/// The parameter on the tape of the recomputed scope, if the scope has used it.
fn scoped_parameter(slot: &Arc<Slot>) -> Option<Arc<ScopedParameter>> {
    STATE.with_borrow(|state| {
        let place = state.places.get(&address(slot))?;
        Some(state.replayed[*place].clone())
    })
}

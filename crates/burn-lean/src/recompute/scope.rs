//! What the parameters of a scope are to this thread while the scope runs.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, Weak};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;

use crate::backend::{Inner, Primitive, Tracked};
use crate::lock::lock;
use crate::session::Place;
use crate::slot::Slot;
use crate::tape::{HookOwner, leaf_hook};

/// How an armed parameter is read on this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On the tape of the model.
    Tape,
    /// Without a tape: a scope runs, and notes which parameters it uses.
    Recording,
    /// On the tape of a scope that backward computes again.
    Replaying,
}

struct State {
    mode: Mode,
    /// Whether the scope that is computed again is in no other.
    is_outermost: bool,
    /// By the address of the slot: an `Arc<Slot<B>>` or an `Arc<Part<B>>`.
    slots: HashMap<usize, Box<dyn Any>>,
    /// The same, in the order of their first use.
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

/// Runs in another mode, and returns what was noted. What was before comes back, after a panic too.
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
    let before = back.0.take().expect("nobody else takes it");
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

/// An armed parameter is used in a scope that runs without a tape.
pub(crate) fn record<B: Inner>(slot: &Arc<Slot<B>>) {
    let at = Arc::as_ptr(slot) as usize;
    STATE.with_borrow_mut(|state| {
        if let Entry::Vacant(entry) = state.slots.entry(at) {
            entry.insert(Box::new(slot.clone()));
            state.order.push(at);
        }
    });
}

/// A parameter on the tape of a scope that backward computes again.
pub(crate) struct Part<B: Inner> {
    slot: Arc<Slot<B>>,
    /// The scope is on the tape of the model, and not in another one.
    is_outermost: bool,
    state: Mutex<PartState<B>>,
}

struct PartState<B: Inner> {
    hook: Option<Tracked<B>>,
    taken: bool,
    grad: Option<Primitive<B>>,
}

/// What came of a part.
pub(crate) struct PartOutcome<B: Inner> {
    pub(crate) slot: Arc<Slot<B>>,
    pub(crate) taken: bool,
    /// What it adds to the gradient of the parameter.
    pub(crate) grad: Option<Primitive<B>>,
}

impl<B: Inner> Part<B> {
    fn state(&self) -> std::sync::MutexGuard<'_, PartState<B>> {
        lock(&self.state)
    }

    pub(crate) fn slot(&self) -> &Arc<Slot<B>> {
        &self.slot
    }

    /// The leaf hook, while its gradient is not complete.
    pub(crate) fn hook(&self) -> Option<NodeId> {
        self.state().hook.as_ref().map(Tracked::<B>::id)
    }

    pub(crate) fn remove_grad(&self, grads: &mut Gradients) -> Option<Primitive<B>> {
        self.state().hook.as_ref()?.grad_remove(grads)
    }

    pub(crate) fn outcome(&self, grads: &mut Gradients) -> PartOutcome<B> {
        let mut state = self.state();
        let left = state.hook.take().and_then(|hook| hook.grad_remove(grads));
        PartOutcome {
            slot: self.slot.clone(),
            taken: state.taken,
            grad: state.grad.take().or(left),
        }
    }
}

impl<B: Inner> HookOwner<B> for Part<B> {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.slot.session() {
            session.learn(hook, (self.slot.id, true), checkpointer);
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

/// Runs a scope on a tape of its own, and returns the parameters it has used.
pub(crate) fn replaying<B: Inner, R>(
    is_outermost: bool,
    run: impl FnOnce() -> R,
) -> (R, Vec<Arc<Part<B>>>) {
    let mut state = State::new(Mode::Replaying);
    state.is_outermost = is_outermost;
    let (result, mut state) = within(state, run);
    let parts = state.order.iter().filter_map(|at| state.slots.remove(at));
    (
        result,
        parts
            .filter_map(|part| Some(*part.downcast().ok()?))
            .collect(),
    )
}

/// The parameter on the tape of the scope that is computed again.
pub(crate) fn replayed<B: Inner>(slot: &Arc<Slot<B>>) -> Tracked<B> {
    let at = Arc::as_ptr(slot) as usize;
    if let Some(part) = part_of(slot) {
        let hook = part.state().hook.clone();
        return hook.expect("a scope runs before its backward pass");
    }
    let session = slot.session();
    let place: Place = (slot.id, true);
    let order = session
        .as_ref()
        .map_or(1, |session| session.order_of(place).0);
    let weight = slot.weight();
    let below = B::ladder().rung(order - 1, &weight.device());
    // The gradient stays with the part: the leaf is only what a hook needs below it.
    let leaf = <Tracked<B>>::new(slot.placeholder()).require_grad();
    let part = Arc::new_cyclic(|part: &Weak<Part<B>>| {
        let owner: Weak<dyn HookOwner<B>> = part.clone();
        let hooked = leaf_hook::<B>(weight, &leaf, below, owner, &Arc::default());
        if let Some(session) = session {
            session.hook_made(hooked.id(), place, order);
        }
        Part {
            slot: slot.clone(),
            is_outermost: STATE.with_borrow(|state| state.is_outermost),
            state: Mutex::new(PartState {
                hook: Some(hooked),
                taken: false,
                grad: None,
            }),
        }
    });
    let hooked = part.state().hook.clone();
    STATE.with_borrow_mut(|state| {
        state.slots.insert(at, Box::new(part));
        state.order.push(at);
    });
    hooked.expect("it was made right now")
}

/// The part of a parameter in the scope that is computed again, if the scope has used it.
pub(crate) fn part_of<B: Inner>(slot: &Arc<Slot<B>>) -> Option<Arc<Part<B>>> {
    let at = Arc::as_ptr(slot) as usize;
    STATE.with_borrow(|state| state.slots.get(&at)?.downcast_ref().cloned())
}

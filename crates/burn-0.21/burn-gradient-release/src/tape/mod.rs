//! The tape of `burn-autodiff`, and the nodes that gradient release adds to it.
//!
//! A *node* has an id, under which contributions to its gradient add up, and an *order*: one more
//! than the highest order among its parents, 0 for a leaf. A backward pass collects the nodes that
//! it reaches from its root, depth first and the last parent first, and runs them by order, highest
//! first. Nodes of one order run in the order in which they were reached.
//!
//! Operations are those of plain Burn: same parents, same orders. Gradient release adds
//! [hooks](hook): nodes of its own between or beside them. The results are equal bit for bit
//! because Burn reaches and runs its own nodes as before.

pub(crate) mod consumers;
pub(crate) mod mark;
pub(crate) mod tally;
pub(crate) mod visit;

use std::{fmt, sync::Arc};

use burn::tensor::{
    Shape, TensorMetadata,
    backend::{Backend, BackendTypes},
    ops::{FloatTensor, FloatTensorOps},
};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

/// The tensor of `burn-autodiff`. Its type cannot be named there, but its fields are public, and
/// it does not depend on the checkpointing strategy.
pub(crate) type AdTensor<B> = <Autodiff<B> as BackendTypes>::FloatTensorPrimitive;

/// An order above that of any root: the pass reaches such a node, but drops it without running it.
const NEVER_RUN: usize = usize::MAX;

/// A handle to the node of `like` that carries `value` and claims `order`.
///
/// A consumer takes its own order from the orders that its operands claim. A handle that claims the
/// order of plain Burn's operand leaves the consumer where plain Burn puts it.
pub(crate) fn handle<B: Backend>(
    like: &AdTensor<B>,
    value: FloatTensor<B>,
    order: usize,
) -> AdTensor<B> {
    let mut handle = key(like, value);
    let node = Arc::get_mut(&mut handle.node).expect("a new tensor owns its node alone");
    node.order = order;
    handle.rc = like.rc.clone();
    handle
}

pub(crate) fn off_tape<B: Backend>(value: FloatTensor<B>) -> AdTensor<B> {
    // `Autodiff::from_inner` does the same, but has more bounds with the feature `distributed`.
    AdTensor::<B>::new(value)
}

/// A handle that names the node of `like` without keeping it on the tape.
pub(crate) fn key<B: Backend>(like: &AdTensor<B>, value: FloatTensor<B>) -> AdTensor<B> {
    let mut key = off_tape::<B>(value);
    let node = Arc::get_mut(&mut key.node).expect("a new tensor owns its node alone");
    node.id = like.node.id;
    node.order = like.node.order;
    node.requirement = like.node.requirement;
    node.properties = like.node.properties.clone();
    key
}

/// An untracked tensor that claims `order`, to learn the orders of operations on it.
pub(crate) fn untracked<B: Backend>(value: FloatTensor<B>, order: usize) -> AdTensor<B> {
    let mut tensor = off_tape::<B>(value);
    let node = Arc::get_mut(&mut tensor.node).expect("a new tensor owns its node alone");
    node.order = order;
    tensor
}

/// A placeholder for the value of nodes that need none.
pub(crate) fn placeholder<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_empty(Shape::new([1]), &B::float_device(like), like.dtype().into())
}

pub(crate) fn bytes<B: Backend>(value: &FloatTensor<B>) -> u64 {
    (value.shape().num_elements() * value.dtype().size()) as u64
}

pub(crate) fn leaf<B: Backend>(value: FloatTensor<B>) -> AdTensor<B> {
    Autodiff::<B>::float_set_require_grad(off_tape::<B>(value), true)
}

/// Whether this is a leaf that requires a gradient.
pub(crate) fn is_leaf<B: Backend>(tensor: &AdTensor<B>) -> bool {
    Autodiff::<B>::float_is_require_grad(tensor)
}

/// Takes the gradient that was accumulated under a node.
pub(crate) fn take<B: Backend>(
    id: NodeId,
    like: &AdTensor<B>,
    grads: &mut Gradients,
) -> Option<FloatTensor<B>> {
    let mut key = off_tape::<B>(like.primitive.clone());
    let node = Arc::get_mut(&mut key.node).expect("a new tensor owns its node alone");
    node.id = id;
    grads.remove::<B>(&key)
}

/// Adds the gradient that was accumulated under one node to that of another, as Burn would have.
pub(crate) fn forward<B: Backend>(from: NodeId, to: &AdTensor<B>, grads: &mut Gradients) {
    if let Some(contribution) = take(from, to, grads) {
        grads.register::<B>(to.node.id, contribution);
    }
}

/// Function of a hook, given its own node.
pub(crate) type Run = dyn Fn(NodeId, &mut Gradients) + Send + Sync;

/// Puts a node of the given order on the tape. `run` is called when backward runs it.
///
/// Its parents are reached as they would be from an operation with these operands. `value` stands
/// for its output; the gradient under its id is left to `run`.
pub(crate) fn hook<B: Backend>(
    parents: Vec<AdTensor<B>>,
    order: usize,
    value: FloatTensor<B>,
    run: impl Fn(NodeId, &mut Gradients) + Send + Sync + 'static,
) -> AdTensor<B> {
    #[derive(Debug)]
    struct Hook;

    #[derive(Clone)]
    struct State(Arc<Run>);

    impl fmt::Debug for State {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Hook")
        }
    }

    impl<B: Backend, const N: usize> Backward<B, N> for Hook {
        type State = State;

        fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
            (ops.state.0)(ops.node.id, grads);
        }
    }

    register(Hook, State(Arc::new(run)), parents, order, value)
}

/// Registers a node with any number of parents, in pairs: the second of a pair stands for the rest,
/// and is reached first, as the last parent of an operation is.
fn register<B, T, S>(
    backward: T,
    state: S,
    mut parents: Vec<AdTensor<B>>,
    order: usize,
    value: FloatTensor<B>,
) -> AdTensor<B>
where
    B: Backend,
    T: Backward<B, 1, State = S> + Backward<B, 2, State = S>,
    S: Clone + Send + fmt::Debug + 'static,
{
    /// Leads to the parents that do not fit into the node before.
    #[derive(Debug)]
    struct Rest;

    impl<B: Backend> Backward<B, 2> for Rest {
        type State = ();

        fn backward(self, _: Ops<(), 2>, _: &mut Gradients, _: &mut Checkpointer) {}
    }

    let claim = |parent: &AdTensor<B>| handle(parent, parent.primitive.clone(), order - 1);
    let mut last = parents.pop().expect("a hook has a parent");
    while parents.len() > 1 {
        let parent = parents.pop().expect("there are two or more");
        // Held until the node is registered: a pass that ends on another thread frees graphs that
        // nothing holds.
        let pair = [parent, last];
        let nodes = pair
            .each_ref()
            .map(|parent| handle(parent, parent.primitive.clone(), NEVER_RUN - 1).node);
        let rest = Backward::<B, 2>::prepare::<NoCheckpointing>(Rest, nodes).compute_bound();
        last = rest.stateless(value.clone());
        drop(pair);
    }
    let node = match parents.pop() {
        Some(parent) => {
            let nodes = [claim(&parent).node, claim(&last).node];
            let prep = Backward::<B, 2>::prepare::<NoCheckpointing>(backward, nodes);
            match prep.compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish(state, value),
                OpsKind::UnTracked(_) => unreachable!("the parents of a hook are tracked"),
            }
        }
        None => {
            let nodes = [claim(&last).node];
            let prep = Backward::<B, 1>::prepare::<NoCheckpointing>(backward, nodes);
            match prep.compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish(state, value),
                OpsKind::UnTracked(_) => unreachable!("the parents of a hook are tracked"),
            }
        }
    };
    check_order(node.node.order, order);
    node
}

/// Checks that a new node has the expected order.
///
/// # Panics
///
/// If burn-autodiff counts differently: the weights could then differ from plain Burn's.
pub(crate) fn check_order(found: usize, expected: usize) {
    assert!(
        found == expected,
        "{ANOTHER_TAPE} (order {found}, not {expected})"
    );
}

/// Checks that an operation is a single node, as expected.
///
/// # Panics
///
/// If burn-autodiff makes several nodes of it: a gradient could then be lost.
pub(crate) fn check_one_node(is_one: bool) {
    assert!(is_one, "{ANOTHER_TAPE} (an operation of several nodes)");
}

const ANOTHER_TAPE: &str = "gradient release relies on the tape of burn-autodiff 0.21.0, and found \
    another: use the version of burn-autodiff that burn-gradient-release was built for";

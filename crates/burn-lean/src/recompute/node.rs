//! A scope on the tape: one node with the inputs and parameters of the scope as its parents, and
//! above it one node for each output. Its backward step computes the scope again on a tape of its
//! own, and runs backward there.
//!
//! Gradients add up as on one tape: the tape of the scope starts from the sum of later uses of a
//! tensor, and returns the new sum.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{AutodiffBackend, Dispatch, DispatchAutodiffContext, DispatchTensor};

use crate::backend::plain;
use crate::lock::lock;
use crate::marks;
use crate::recompute::scope::{
    Mode, ScopedOutcome, ScopedParameter, address, mode, replayed, replaying,
};
use crate::session::Slot;
use crate::tape::{
    ARMING_HAS_ENDED, Zeros, gathered, guard, is_tracked, leaf, node, node_of, register, take_sum,
};

pub(crate) const COMPUTES_ANOTHER: &str = "checkpoint: backward has run the scope again, and it has \
computed something else than the first time, so its gradients would be wrong; `forward` must \
compute the same both times, and no other thread may draw random numbers from the same backend \
meanwhile, as the workers of a data loader do whose batcher draws some: let them draw on another \
backend";

/// The nodes that receive gradients from a scope.
pub(crate) struct Parents {
    /// The floats of its input; `None` for those that need no gradient.
    pub(crate) inputs: Vec<Option<DispatchTensor>>,
    /// The leaves of parameters that are not armed.
    pub(crate) leaves: Vec<Leaf>,
    /// The armed parameters.
    pub(crate) slots: Vec<Arc<Slot>>,
}

/// The leaf of a parameter that is not armed.
pub(crate) struct Leaf {
    pub(crate) tensor: DispatchTensor,
    /// Burn counts the gradients of such a leaf, to know when to send their sum.
    pub(crate) is_distributed: bool,
}

/// A recomputed scope on a tape of its own.
pub(crate) struct Again {
    pub(crate) outputs: Vec<DispatchTensor>,
    /// Leaves in place of the inputs that need a gradient.
    pub(crate) inputs: Vec<Option<DispatchTensor>>,
    /// Leaves in place of the leaves of parameters that are not armed.
    pub(crate) leaves: Vec<DispatchTensor>,
}

type RunAgain = Box<dyn FnOnce() -> Again + Send>;

/// An armed parameter of a scope, and the hook that its gradient goes to.
struct Use {
    slot: Arc<Slot>,
    /// The leaf of the arming: a model with adapters keeps its slots from step to step.
    leaf: NodeId,
    hook: NodeId,
}

impl Use {
    fn has_ended(&self) -> bool {
        self.slot.phase().has_ended() || self.slot.leaf_id() != self.leaf
    }
}

/// The node of an input that needs a gradient.
struct InputNode {
    id: NodeId,
    is_leaf: bool,
}

/// What the scope's node keeps until backward. It holds no tensor of the tape: Burn would never free
/// a graph that no backward pass comes to.
struct Scope {
    again: RunAgain,
    inputs: Vec<Option<InputNode>>,
    /// The nodes of the leaves, and whether the sum of their gradients may be taken.
    leaves: Vec<(NodeId, bool)>,
    uses: Vec<Use>,
    /// The scope is in no other one that is recomputed.
    is_outermost: bool,
    grads: OutputGrads,
}

/// The gradients that the nodes of the outputs have received, by the index of the output. The nodes
/// have one order, so they run as Burn has reached them.
type OutputGrads = Arc<Mutex<Vec<(usize, DispatchTensor)>>>;

fn id_of(tensor: &DispatchTensor) -> NodeId {
    node_of(tensor).expect("a tensor of a tape has a node")
}

/// Puts a scope on the tape. Returns its outputs.
pub(crate) fn scope_node(
    parents: Parents,
    outputs: Vec<DispatchTensor>,
    again: RunAgain,
) -> Vec<DispatchTensor> {
    let grads = OutputGrads::default();
    let is_in_scope = mode() == Mode::Replaying;

    let mut guards: Vec<NodeGuard> = parents.inputs.iter().flatten().map(guard).collect();
    guards.extend(parents.leaves.iter().map(|leaf| guard(&leaf.tensor)));
    let mut uses = Vec::new();
    for slot in parents.slots {
        let hook = match is_in_scope {
            true => replayed(&slot),
            false => slot.on_tape(false),
        };
        guards.push(guard(&hook));
        let (leaf, hook) = (slot.leaf_id(), id_of(&hook));
        uses.push(Use { slot, leaf, hook });
    }
    let input = |input: &DispatchTensor| InputNode {
        id: id_of(input),
        is_leaf: Dispatch::float_is_require_grad(input),
    };
    let leaf = |leaf: &Leaf| (id_of(&leaf.tensor), !leaf.is_distributed);
    let inputs = parents.inputs.iter();
    let scope = Scope {
        again,
        inputs: inputs.map(|tensor| tensor.as_ref().map(input)).collect(),
        leaves: parents.leaves.iter().map(leaf).collect(),
        uses,
        is_outermost: !is_in_scope,
        grads: grads.clone(),
    };
    let autodiff = outputs[0].autodiff;
    let scalar = Zeros::like(&plain(outputs[0].clone())).one();
    let guards = gathered(guards, &scalar, autodiff);
    let scope = node(scalar, guards, autodiff, move |reached| {
        scope.backward(reached.grads);
    });
    let outputs = outputs.into_iter().enumerate();
    let outputs = outputs.map(|(at, output)| {
        let grads = grads.clone();
        node(
            plain(output),
            [guard(&scope)],
            autodiff,
            move |mut reached| {
                let grad = reached.grad();
                lock(&grads).push((at, grad));
            },
        )
    });
    outputs.collect()
}

impl Scope {
    fn backward(self, grads: &mut Gradients) {
        let Self {
            again,
            inputs,
            leaves,
            uses,
            is_outermost,
            grads: outputs,
        } = self;
        let of_outputs = std::mem::take(&mut *lock(&outputs));

        // The weights are no longer in their slots, or no longer those of this arming.
        assert!(!uses.iter().any(Use::has_ended), "{ARMING_HAS_ENDED}");
        for session in uses.iter().filter_map(|used| used.slot.session()) {
            session.begin();
        }
        let (run, params) = marks::recompute(|| replaying(is_outermost, again));
        let uses: HashMap<_, _> = uses.iter().map(|it| (address(&it.slot), it)).collect();
        let use_of = |slot: &Arc<Slot>| uses.get(&address(slot));
        let is_used = |param: &Arc<ScopedParameter>| use_of(param.slot()).is_some();
        assert!(
            params.len() == uses.len() && params.iter().all(is_used),
            "{COMPUTES_ANOTHER}"
        );
        let Again {
            inputs: of_inputs,
            leaves: of_leaves,
            outputs,
        } = run;
        // The gradients that the tape of the scope starts from: the sums of later uses on the outer
        // tape.
        let mut seeds: Vec<(NodeId, DispatchTensor)> = Vec::new();
        // Without outputs that lead to no loss: Burn runs no node without a gradient.
        let mut roots: Vec<NodeGuard> = Vec::new();
        for (at, grad) in of_outputs {
            let output = &outputs[at];
            if is_tracked(output) {
                seeds.push((id_of(output), grad));
                roots.push(guard(output));
            }
        }
        // Burn reaches the last parent first.
        roots.reverse();
        let mut seed = |outer, inner, like: DispatchTensor| {
            let sum = take_sum(outer, &like, grads);
            seeds.extend(sum.map(|sum| (inner, sum)));
        };
        for (input, leaf) in inputs.iter().zip(&of_inputs) {
            if let (Some(input), Some(leaf)) = (input, leaf) {
                seed(input.id, id_of(leaf), plain(leaf.clone()));
            }
        }
        for ((outer, may_take), leaf) in leaves.iter().zip(&of_leaves) {
            if *may_take {
                seed(*outer, id_of(leaf), plain(leaf.clone()));
            }
        }
        for param in &params {
            if let (Some(used), Some(hook)) = (use_of(param.slot()), param.hook()) {
                seed(used.hook, hook, used.slot.placeholder());
            }
        }

        let scalar = Zeros::like(&plain(outputs[0].clone())).one();
        let autodiff = outputs[0].autodiff;
        drop(outputs);
        let mut inner = backward(roots, seeds, scalar, autodiff);

        for (input, leaf) in inputs.iter().zip(&of_inputs) {
            let (Some(input), Some(leaf)) = (input, leaf) else {
                continue;
            };
            if let Some(grad) = Dispatch::grad_remove(leaf, &mut inner) {
                register(grads, input.id, grad);
            } else if !input.is_leaf {
                // It leads to no loss. Burn still runs its node, which needs a gradient.
                register(grads, input.id, Zeros::like(&plain(leaf.clone())).all());
            }
        }
        for ((outer, _), leaf) in leaves.iter().zip(&of_leaves) {
            if let Some(grad) = Dispatch::grad_remove(leaf, &mut inner) {
                register(grads, *outer, grad);
            }
        }
        for param in params {
            let ScopedOutcome { slot, taken, grad } = param.outcome(&mut inner);
            if taken {
                slot.mark_taken(grads);
            }
            if let (Some(grad), Some(used)) = (grad, use_of(&slot)) {
                register(grads, used.hook, grad);
            }
        }
    }
}

/// Runs backward on the tape of a scope, from the gradients that it starts from.
fn backward(
    mut roots: Vec<NodeGuard>,
    seeds: Vec<(NodeId, DispatchTensor)>,
    scalar: DispatchTensor,
    autodiff: DispatchAutodiffContext,
) -> Gradients {
    // Without outputs, sums of later uses pass through.
    if roots.is_empty() {
        roots.push(guard(&leaf(scalar.clone(), autodiff)));
    }
    let guards = gathered(roots, &scalar, autodiff);
    Dispatch::backward(node(scalar, guards, autodiff, |reached| {
        for (node, grad) in seeds {
            register(reached.grads, node, grad);
        }
    }))
}

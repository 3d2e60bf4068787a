//! A scope on the tape: one node with the inputs and parameters of the scope as its parents, and
//! above it one node for each output. Its backward step computes the scope again on a tape of its
//! own, and runs backward there.
//!
//! Gradients add up as on one tape: the tape of the scope starts from the sum of later uses of a
//! tensor, and returns the new sum. Who awaits the gradient of a parameter gets it as soon as it is
//! complete on the tape of the scope.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{
    AutodiffBackend, Dispatch, DispatchAutodiffContext, DispatchDevice, DispatchTensor,
    TensorMetadata,
};

use super::mode::replaying;
use crate::backend::plain;
use crate::backward::{
    Frame, Owner, is_awaited, reach, refuse, take_gradient, take_partial, watch,
};
use crate::lock::lock;
use crate::marks;
use crate::tape::{Zeros, gathered, guard, is_tracked, leaf, node, node_of, register, take_sum};

/// The nodes that receive gradients from a scope.
pub(super) struct Parents {
    /// The floats of its input; `None` for those that need no gradient.
    pub(super) inputs: Vec<Option<DispatchTensor>>,
    /// The leaves of its parameters, and whether they are distributed.
    pub(super) leaves: Vec<(DispatchTensor, bool)>,
    /// Whether the scope computes on another device than they are on.
    pub(super) are_elsewhere: bool,
}

/// A recomputed scope on a tape of its own.
pub(super) struct Again {
    pub(super) outputs: Vec<DispatchTensor>,
    /// Leaves in place of the inputs that need a gradient.
    pub(super) inputs: Vec<Option<DispatchTensor>>,
    /// In place of the leaves of parameters.
    pub(super) leaves: Vec<NewLeaf>,
}

/// A leaf on the tape of a scope. It is not held: the weight would have a second owner.
pub(super) struct NewLeaf {
    pub(super) id: NodeId,
    pub(super) zeros: Zeros,
}

pub(super) const COMPUTES_ANOTHER: &str = "checkpoint: backward has run the scope again, and it has \
computed something else than the first time, so its gradients would be wrong; `forward` must \
compute the same both times, and no other thread may draw random numbers from the same backend \
meanwhile, as the workers of a data loader do whose batcher draws some: let them draw on another \
backend";

type RunAgain = Box<dyn FnOnce() -> Again + Send>;

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
    leaves: Vec<OuterLeaf>,
    grads: OutputGrads,
}

/// The leaf of a parameter, outside of the scope.
struct OuterLeaf {
    id: NodeId,
    /// Whether the sum of its gradients may be taken.
    may_take: bool,
    /// Its device, if the scope computes on another one.
    elsewhere: Option<DispatchDevice>,
}

/// The gradients that the nodes of the outputs have received, by the index of the output. The nodes
/// have one order, so they run as Burn has reached them.
type OutputGrads = Arc<Mutex<Vec<(usize, DispatchTensor)>>>;

fn id_of(tensor: &DispatchTensor) -> NodeId {
    node_of(tensor).expect("a tensor of a tape has a node")
}

/// Puts a scope on the tape. Returns its outputs.
pub(super) fn scope_node(
    parents: Parents,
    outputs: Vec<DispatchTensor>,
    again: RunAgain,
) -> Vec<DispatchTensor> {
    let grads = OutputGrads::default();
    let mut guards: Vec<NodeGuard> = parents.inputs.iter().flatten().map(guard).collect();
    guards.extend(parents.leaves.iter().map(|(leaf, _)| guard(leaf)));
    let input = |input: &DispatchTensor| InputNode {
        id: id_of(input),
        is_leaf: Dispatch::float_is_require_grad(input),
    };
    let inputs = parents.inputs.iter();
    let leaf = |(leaf, is_distributed): &(DispatchTensor, bool)| OuterLeaf {
        id: id_of(leaf),
        may_take: !is_distributed,
        elsewhere: (parents.are_elsewhere).then(|| plain(leaf.clone()).device()),
    };
    let scope = Scope {
        again,
        inputs: inputs.map(|tensor| tensor.as_ref().map(input)).collect(),
        leaves: parents.leaves.iter().map(leaf).collect(),
        grads: grads.clone(),
    };
    drop(parents);
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

impl OuterLeaf {
    /// A gradient from the tape of the scope, where the parameter is.
    fn grad(&self, grad: DispatchTensor) -> DispatchTensor {
        match &self.elsewhere {
            None => grad,
            Some(device) => Dispatch::float_to_device(grad, device),
        }
    }
}

/// Gives the gradients of leaves on the tape of a scope to those who await them outside.
struct Outer(Vec<OuterLeaf>);

impl Owner for Outer {
    fn complete(&self, place: usize, grad: DispatchTensor) {
        let leaf = &self.0[place];
        reach(leaf.id.value, Some(leaf.grad(grad)));
    }

    fn is_left(&self, place: usize, grad: Option<DispatchTensor>) {
        let leaf = &self.0[place];
        reach(leaf.id.value, grad.map(|grad| leaf.grad(grad)));
    }

    fn is_added_to(&self, place: usize) {
        refuse(self.0[place].id.value);
    }
}

impl Scope {
    fn backward(self, grads: &mut Gradients) {
        let of_outputs = std::mem::take(&mut *lock(&self.grads));
        let Again {
            inputs: of_inputs,
            leaves: of_leaves,
            outputs,
        } = marks::recompute(|| replaying(self.again));

        // The gradients that the tape of the scope starts from.
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
        // The sums of later uses on the outer tape.
        for (input, leaf) in self.inputs.iter().zip(&of_inputs) {
            if let (Some(input), Some(leaf)) = (input, leaf) {
                let sum = match is_awaited(input.id) {
                    true => take_partial(input.id),
                    false => take_sum(input.id, &plain(leaf.clone()), grads),
                };
                seeds.extend(sum.map(|sum| (id_of(leaf), sum)));
            }
        }
        let outer = Rc::new(Outer(self.leaves));
        let take = take_gradient(&outputs[0]);
        let mut frame = Frame::default();
        let are_awaited: Vec<bool> = outer.0.iter().map(|leaf| is_awaited(leaf.id)).collect();
        for (place, (leaf, inner)) in outer.0.iter().zip(&of_leaves).enumerate() {
            // A sum on another device stays there, and is added to.
            let is_here = leaf.elsewhere.is_none();
            if are_awaited[place] {
                let partial = is_here.then(|| take_partial(leaf.id)).flatten();
                frame.wait_for(inner.id.value, take, partial, outer.clone(), place);
            } else if leaf.may_take && is_here {
                let sum = take_sum(leaf.id, &inner.zeros.all(), grads);
                seeds.extend(sum.map(|sum| (inner.id, sum)));
            }
        }

        let scalar = Zeros::like(&plain(outputs[0].clone())).one();
        let autodiff = outputs[0].autodiff;
        drop(outputs);
        let mut inner = backward(roots, seeds, scalar, autodiff, &frame);
        frame.finish();
        drop(frame);

        for (input, leaf) in self.inputs.iter().zip(&of_inputs) {
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
        for (place, (outer, leaf)) in outer.0.iter().zip(&of_leaves).enumerate() {
            if are_awaited[place] {
                continue;
            }
            if let Some(grad) = take_sum(leaf.id, &leaf.zeros.all(), &mut inner) {
                register(grads, outer.id, outer.grad(grad));
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
    frame: &Frame,
) -> Gradients {
    // Without outputs, sums of later uses pass through.
    if roots.is_empty() {
        roots.push(guard(&leaf(scalar.clone(), autodiff)));
    }
    let guards = gathered(roots, &scalar, autodiff);
    let leaves = frame.leaves();
    Dispatch::backward(node(
        scalar.clone(),
        guards,
        autodiff,
        move |mut reached| {
            if !leaves.is_empty() {
                let is_understood = watch(&mut reached, &scalar, leaves);
                assert!(is_understood, "the tape of the model was understood");
            }
            for (node, grad) in seeds {
                register(reached.grads, node, grad);
            }
        },
    ))
}

//! A scope on the tape: one node with the inputs and parameters of the scope as its parents, and
//! above it one node for each output. Its backward step computes the scope again on a tape of its
//! own, and runs backward there.
//!
//! Gradients add up as on one tape: the tape of the scope starts from the sum of later uses of a
//! tensor, and returns the new sum.

use std::sync::{Arc, Mutex};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Autodiff, AutodiffBackend, TensorMetadata};
use burn::tensor::{FloatDType, Shape};

use crate::armed_slot::Phase;
use crate::backend::{Inner, Primitive, Tracked};
use crate::lock::lock;
use crate::recompute::scope::{Mode, ScopedOutcome, ScopedParameter, mode, replayed, replaying};
use crate::slot::Slot;
use crate::tape::{ARMING_HAS_ENDED, negative_zeros, rung, take_sum};

pub(crate) const COMPUTES_ANOTHER: &str = "checkpoint: backward has run the scope again, and it has \
computed something else than the first time, so its gradients would be wrong; `forward` must \
compute the same both times, and no other thread may draw random numbers from the same backend \
meanwhile, as the workers of a data loader do whose batcher draws some: let them draw on another \
backend";

/// The nodes that receive gradients from a scope.
pub(crate) struct Parents<B: Inner> {
    /// The floats of its input; `None` for those that need no gradient.
    pub(crate) inputs: Vec<Option<Tracked<B>>>,
    /// The leaves of parameters that are not armed.
    pub(crate) leaves: Vec<Leaf<B>>,
    /// The armed parameters.
    pub(crate) slots: Vec<Arc<Slot<B>>>,
}

/// The leaf of a parameter that is not armed.
pub(crate) struct Leaf<B: Inner> {
    pub(crate) tensor: Tracked<B>,
    /// Burn counts the gradients of such a leaf, to know when to send their sum.
    pub(crate) is_distributed: bool,
}

/// A recomputed scope on a tape of its own.
pub(crate) struct Again<B: Inner> {
    pub(crate) outputs: Vec<Tracked<B>>,
    /// Leaves in place of the inputs that need a gradient.
    pub(crate) inputs: Vec<Option<Tracked<B>>>,
    /// Leaves in place of the leaves of parameters that are not armed.
    pub(crate) leaves: Vec<Tracked<B>>,
}

type RunAgain<B> = Box<dyn FnOnce() -> Again<B> + Send>;

/// An armed parameter of a scope, and the hook that its gradient goes to.
struct Use<B: Inner> {
    slot: Arc<Slot<B>>,
    hook: NodeId,
}

/// The node of an input that needs a gradient.
struct InputNode {
    id: NodeId,
    is_leaf: bool,
}

/// What the scope's node keeps until backward. It holds no tensor of the tape: Burn would never free
/// a graph that no backward pass comes to.
struct Scope<B: Inner> {
    again: RunAgain<B>,
    inputs: Vec<Option<InputNode>>,
    /// The nodes of the leaves, and whether the sum of their gradients may be taken.
    leaves: Vec<(NodeId, bool)>,
    uses: Vec<Use<B>>,
    /// The scope is in no other one that is recomputed.
    is_outermost: bool,
    grads: OutputGrads<B>,
}

/// The gradients that the nodes of the outputs have received, by the index of the output. The nodes
/// have one order, so they run as Burn has reached them.
type OutputGrads<B> = Arc<Mutex<Vec<(usize, Primitive<B>)>>>;

/// State of the scope's node, taken by the one backward pass that reaches it.
struct State<B: Inner>(Arc<Mutex<Option<Scope<B>>>>);

impl<B: Inner> Clone for State<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Inner> std::fmt::Debug for State<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

/// Number of parents of one node. [`Gather`] nodes combine more.
const WIDTH: usize = 16;

#[derive(Debug)]
struct ScopeNode;

#[derive(Debug)]
struct Gather;

impl<B: Inner> Backward<B, WIDTH> for Gather {
    type State = ();

    fn backward(self, _: Ops<(), WIDTH>, _: &mut Gradients, _: &mut Checkpointer) {
        // The scope has given its parents their gradients.
    }
}

fn scalar<B: Inner>(device: &B::Device) -> Primitive<B> {
    B::float_zeros(Shape::new([1]), device, FloatDType::F32)
}

/// Combines guards into one array, which begins with the first ones unchanged.
fn gathered<B: Inner>(mut guards: Vec<NodeGuard>, device: &B::Device) -> [NodeGuard; WIDTH] {
    while guards.len() > WIDTH {
        let rest = guards.split_off(guards.len() - WIDTH);
        let rest: [NodeGuard; WIDTH] = rest.try_into().expect("as many as asked for");
        let gather = <Gather as Backward<B, WIDTH>>::prepare::<NoCheckpointing>(Gather, rest)
            .compute_bound()
            .stateless(scalar::<B>(device));
        guards.push(gather.node());
    }
    while guards.len() < WIDTH {
        guards.push(rung::<B>(0, device));
    }
    guards.try_into().expect("filled up")
}

#[derive(Clone, Debug)]
struct OutputState<B: Inner> {
    at: usize,
    grads: OutputGrads<B>,
}

#[derive(Debug)]
struct Output;

impl<B: Inner> Backward<B, 1> for Output {
    type State = OutputState<B>;

    fn backward(self, ops: Ops<OutputState<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let OutputState { at, grads } = ops.state;
        lock(&grads).push((at, grad));
    }
}

/// Puts a scope on the tape. Returns its outputs.
pub(crate) fn scope_node<B: Inner>(
    parents: Parents<B>,
    outputs: Vec<Tracked<B>>,
    again: RunAgain<B>,
) -> Vec<Tracked<B>> {
    let device = outputs[0].device();
    let grads = OutputGrads::<B>::default();
    let is_in_scope = mode() == Mode::Replaying;

    let mut guards: Vec<NodeGuard> = parents
        .inputs
        .iter()
        .flatten()
        .map(Tracked::<B>::node)
        .collect();
    guards.extend(parents.leaves.iter().map(|leaf| leaf.tensor.node()));
    let mut uses = Vec::new();
    for slot in parents.slots {
        let hook = match is_in_scope {
            true => replayed(&slot),
            false => slot.on_tape(false),
        };
        guards.push(hook.node());
        let hook = hook.id();
        uses.push(Use { slot, hook });
    }
    let scope = Scope {
        again,
        inputs: parents
            .inputs
            .iter()
            .map(|input| {
                let input = input.as_ref()?;
                Some(InputNode {
                    id: input.id(),
                    is_leaf: Autodiff::<B>::float_is_require_grad(input),
                })
            })
            .collect(),
        leaves: parents
            .leaves
            .iter()
            .map(|leaf| (leaf.tensor.id(), !leaf.is_distributed))
            .collect(),
        uses,
        is_outermost: !is_in_scope,
        grads: grads.clone(),
    };
    let state = State(Arc::new(Mutex::new(Some(scope))));
    let guards = gathered::<B>(guards, &device);
    let scope =
        match <ScopeNode as Backward<B, WIDTH>>::prepare::<NoCheckpointing>(ScopeNode, guards)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(state, scalar::<B>(&device)),
            OpsKind::UnTracked(_) => unreachable!("a scope without gradients has no node"),
        };
    outputs
        .into_iter()
        .enumerate()
        .map(|(at, output)| {
            let state = OutputState {
                at,
                grads: grads.clone(),
            };
            match <Output as Backward<B, 1>>::prepare::<NoCheckpointing>(Output, [scope.node()])
                .compute_bound()
                .stateful()
            {
                OpsKind::Tracked(prep) => prep.finish(state, output.into_primitive()),
                OpsKind::UnTracked(_) => unreachable!("its parent is tracked"),
            }
        })
        .collect()
}

impl<B: Inner> Backward<B, WIDTH> for ScopeNode {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, WIDTH>, grads: &mut Gradients, _: &mut Checkpointer) {
        let scope = lock(&ops.state.0).take();
        let Scope {
            again,
            inputs,
            leaves,
            uses,
            is_outermost,
            grads: outputs,
        } = scope.expect("backward consumes a node once");
        let of_outputs = std::mem::take(&mut *lock(&outputs));

        for session in uses.iter().filter_map(|used| used.slot.session()) {
            session.begin();
        }
        // The weights are no longer in their slots.
        let mut phases = uses.iter().map(|used| used.slot.phase());
        assert!(
            !phases.any(|phase| phase == Phase::Ended),
            "{ARMING_HAS_ENDED}"
        );
        let (run, params) = replaying::<B, _>(is_outermost, again);
        let is_used = |param: &Arc<ScopedParameter<B>>| {
            let mut slots = uses.iter().map(|used| &used.slot);
            slots.any(|slot| Arc::ptr_eq(slot, param.slot()))
        };
        assert!(
            params.len() == uses.len() && params.iter().all(is_used),
            "{COMPUTES_ANOTHER}"
        );
        // The gradients that the tape of the scope starts from: the sums of later uses on the outer
        // tape.
        let mut seeds: Vec<(NodeId, Primitive<B>)> = Vec::new();
        // Without outputs that lead to no loss: Burn runs no node without a gradient.
        let mut roots: Vec<NodeGuard> = Vec::new();
        for (at, grad) in of_outputs {
            let output = &run.outputs[at];
            if output.is_tracked() {
                seeds.push((output.id(), grad));
                roots.push(output.node());
            }
        }
        // Burn reaches the last parent first.
        roots.reverse();
        let mut seed = |outer, inner, like: &Primitive<B>| {
            let sum = take_sum::<B>(outer, like, grads);
            seeds.extend(sum.map(|sum| (inner, sum)));
        };
        for (input, leaf) in inputs.iter().zip(&run.inputs) {
            if let (Some(input), Some(leaf)) = (input, leaf) {
                seed(input.id, leaf.id(), leaf.primitive());
            }
        }
        for ((outer, may_take), leaf) in leaves.iter().zip(&run.leaves) {
            if *may_take {
                seed(*outer, leaf.id(), leaf.primitive());
            }
        }
        for param in &params {
            let used = uses
                .iter()
                .find(|used| Arc::ptr_eq(&used.slot, param.slot()));
            if let (Some(used), Some(hook)) = (used, param.hook()) {
                seed(used.hook, hook, &used.slot.placeholder());
            }
        }

        let device = run.outputs[0].device();
        let Again {
            inputs: of_inputs,
            leaves: of_leaves,
            outputs,
        } = run;
        drop(outputs);
        let mut inner = backward::<B>(roots, seeds, &device);

        for (input, leaf) in inputs.iter().zip(&of_inputs) {
            let (Some(input), Some(leaf)) = (input, leaf) else {
                continue;
            };
            if let Some(grad) = leaf.grad_remove(&mut inner) {
                grads.register::<B>(input.id, grad);
            } else if !input.is_leaf {
                // It leads to no loss. Burn still runs its node, which needs a gradient.
                grads.register::<B>(input.id, negative_zeros::<B>(leaf.primitive()));
            }
        }
        for ((outer, _), leaf) in leaves.iter().zip(&of_leaves) {
            if let Some(grad) = leaf.grad_remove(&mut inner) {
                grads.register::<B>(*outer, grad);
            }
        }
        for param in params {
            let ScopedOutcome { slot, taken, grad } = param.outcome(&mut inner);
            if taken {
                slot.mark_taken(grads);
            }
            if let Some(grad) = grad
                && let Some(used) = uses.iter().find(|used| Arc::ptr_eq(&used.slot, &slot))
            {
                grads.register::<B>(used.hook, grad);
            }
        }
    }
}

/// The root of a scope's tape: registers the gradients that the tape starts from.
#[derive(Debug)]
struct Root;

#[derive(Clone)]
struct Seeds<B: Inner>(Vec<(NodeId, Primitive<B>)>);

impl<B: Inner> std::fmt::Debug for Seeds<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seeds")
    }
}

impl<B: Inner> Backward<B, WIDTH> for Root {
    type State = Seeds<B>;

    fn backward(self, ops: Ops<Seeds<B>, WIDTH>, grads: &mut Gradients, _: &mut Checkpointer) {
        for (node, grad) in ops.state.0 {
            grads.register::<B>(node, grad);
        }
    }
}

fn backward<B: Inner>(
    mut roots: Vec<NodeGuard>,
    seeds: Vec<(NodeId, Primitive<B>)>,
    device: &B::Device,
) -> Gradients {
    // Without outputs, sums of later uses pass through.
    if roots.is_empty() {
        let leaf = <Tracked<B>>::new(scalar::<B>(device)).require_grad();
        roots.push(leaf.node());
    }
    let guards = gathered::<B>(roots, device);
    let seeds = Seeds(seeds);
    let root = match <Root as Backward<B, WIDTH>>::prepare::<NoCheckpointing>(Root, guards)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(seeds, scalar::<B>(device)),
        OpsKind::UnTracked(_) => unreachable!("its parents are tracked"),
    };
    Autodiff::<B>::backward(root)
}

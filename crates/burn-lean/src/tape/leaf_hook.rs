//! The leaf hook: an identity between the leaf of a parameter and its consumers. Its backward step
//! runs after those of all consumers that a pass reaches, when the gradient of the parameter is
//! complete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};

use burn::tensor::Shape;

use crate::backend::{Inner, Primitive, Tracked};

/// The owner of a hook, which takes the gradient of a parameter.
pub(crate) trait HookOwner<B: Inner>: Send + Sync {
    /// Called when the gradient of `hook` is complete. Returns false to leave the gradient where it
    /// is.
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool;
}

pub(crate) const ARMING_HAS_ENDED: &str = "gradient release: this backward pass comes to a \
forward pass of an arming that has ended since, and would lose its gradients; run backward before \
`step` or `disarm` (or before the last micro-batch is armed), or the forward pass again after it";

#[derive(Debug)]
struct LeafHook;

struct State<B: Inner> {
    owner: Weak<dyn HookOwner<B>>,
    leaf: NodeId,
    has_gone_on: Arc<AtomicBool>,
    /// A tensor of the gradient's shape and type that takes no memory.
    placeholder: Primitive<B>,
}

impl<B: Inner> Clone for State<B> {
    fn clone(&self) -> Self {
        Self {
            owner: self.owner.clone(),
            leaf: self.leaf,
            has_gone_on: self.has_gone_on.clone(),
            placeholder: self.placeholder.clone(),
        }
    }
}

impl<B: Inner> std::fmt::Debug for State<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("leaf", &self.leaf)
            .finish_non_exhaustive()
    }
}

impl<B: Inner> Backward<B, 2> for LeafHook {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<State<B>, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let State {
            owner,
            leaf,
            has_gone_on,
            placeholder,
        } = ops.state;
        assert!(!has_gone_on.load(Ordering::Relaxed), "{ARMING_HAS_ENDED}");
        if let Some(owner) = owner.upgrade()
            && owner.complete(ops.node.id, grads, checkpointer)
        {
            return;
        }
        // An ordinary gradient goes under the leaf. `consume` needs one, and recomputed scopes may
        // have left none: so zeros are added that change no sum.
        grads.register::<B>(ops.node.id, negative_zeros::<B>(&placeholder));
        let grad = grads.consume::<B>(&ops.node);
        grads.register::<B>(leaf, grad);
    }
}

/// Puts `value` on the tape, over `leaf` and one order above `below`.
pub(crate) fn leaf_hook<B: Inner>(
    value: Primitive<B>,
    leaf: &Tracked<B>,
    below: NodeGuard,
    owner: Weak<dyn HookOwner<B>>,
    has_gone_on: &Arc<AtomicBool>,
) -> Tracked<B> {
    let state = State {
        owner,
        leaf: leaf.id(),
        has_gone_on: has_gone_on.clone(),
        placeholder: leaf.primitive().clone(),
    };
    match <LeafHook as Backward<B, 2>>::prepare::<NoCheckpointing>(LeafHook, [leaf.node(), below])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(state, value),
        OpsKind::UnTracked(_) => unreachable!("the leaf is tracked"),
    }
}

/// Zeros that change no sum, expanded from [one](negative_zero).
pub(crate) fn negative_zeros<B: Inner>(like: &Primitive<B>) -> Primitive<B> {
    B::float_expand(negative_zero::<B>(like), like.shape())
}

/// One element that changes no sum, of the rank of a tensor: -0 + x is x, also for both zeros.
pub(super) fn negative_zero<B: Inner>(like: &Primitive<B>) -> Primitive<B> {
    let one = Shape::from(vec![1; like.shape().num_dims()]);
    B::float_full(one, (-0.0f32).into(), &like.device(), like.dtype().into())
}

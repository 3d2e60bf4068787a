//! Burn's tape, from tensors of any backend.

use std::fmt;

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{
    AutodiffBackend, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchDevice,
    DispatchTensor, DispatchTensorKind, TensorMetadata,
};
use burn::tensor::{DType, Shape};

#[cfg(feature = "operations")]
use crate::backend::plain;
use crate::backend::{kind_of_backend, with_backend};

/// The node of a tensor; `None` without autodiff, and on an unknown backend.
pub(crate) fn node_of(tensor: &DispatchTensor) -> Option<NodeId> {
    let node = with_backend!(
        kind_of_backend(&tensor.kind),
        |B, wrap, tensor| match tensor {
            BackendTensor::Autodiff(tensor) => Some(tensor.id()),
            _ => None,
        }
    );
    node.flatten()
}

/// Whether backward comes to the node of a tensor.
pub(crate) fn is_tracked(tensor: &DispatchTensor) -> bool {
    // Any rank will do.
    Tensor::<1>::from_dispatch(tensor.clone()).is_tracked()
}

/// Keeps the node of a tensor with autodiff until a node above it is made.
pub(crate) fn guard(tensor: &DispatchTensor) -> NodeGuard {
    with_backend!(kind_of_backend(&tensor.kind), |B, wrap, tensor| tensor
        .as_autodiff()
        .node())
    .expect("the backend of a node is known")
}

pub(crate) fn constant(value: DispatchTensor, autodiff: DispatchAutodiffContext) -> DispatchTensor {
    DispatchTensor {
        kind: Dispatch::from_inner(value).kind,
        autodiff,
    }
}

/// A leaf of the tape, which needs a gradient.
pub(crate) fn leaf(value: DispatchTensor, autodiff: DispatchAutodiffContext) -> DispatchTensor {
    Dispatch::float_set_require_grad(constant(value, autodiff), true)
}

/// Adds to the gradient of a node.
pub(crate) fn register(grads: &mut Gradients, node: NodeId, grad: DispatchTensor) {
    with_backend!(grad.kind, |B, wrap, grad| grads
        .register::<B>(node, grad.float()))
    .expect("the backend of a gradient is known");
}

/// What zeros are made of that change no sum: -0 + x is x, also for both zeros.
pub(crate) struct Zeros {
    shape: Shape,
    device: DispatchDevice,
    dtype: DType,
}

impl Zeros {
    /// Those like a tensor without autodiff.
    pub(crate) fn like(tensor: &DispatchTensor) -> Self {
        Self {
            shape: tensor.shape(),
            device: tensor.device(),
            dtype: tensor.dtype(),
        }
    }

    /// One of them, of the same rank.
    pub(crate) fn one(&self) -> DispatchTensor {
        let one = Shape::from(vec![1; self.shape.num_dims()]);
        Dispatch::float_full(one, (-0.0f32).into(), &self.device, self.dtype.into())
    }

    /// A tensor of all elements, in the memory of one.
    pub(crate) fn all(&self) -> DispatchTensor {
        Dispatch::float_expand(self.one(), self.shape.clone())
    }
}

/// A node that a backward pass has come to.
pub(crate) struct Reached<'a, const N: usize> {
    pub(crate) ops: Ops<(), N>,
    pub(crate) grads: &'a mut Gradients,
    pub(crate) checkpointer: &'a Checkpointer,
    grad: fn(&mut Gradients, &Ops<(), N>) -> DispatchTensor,
}

impl<const N: usize> Reached<'_, N> {
    pub(crate) fn id(&self) -> NodeId {
        self.ops.node.id
    }

    /// Takes the sum of the node's gradients.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub(crate) fn grad(&mut self) -> DispatchTensor {
        (self.grad)(self.grads, &self.ops)
    }
}

/// Puts a value on the tape, over its parents. Backward runs `step` once, if a parent needs a
/// gradient.
pub(crate) fn node<const N: usize>(
    value: DispatchTensor,
    parents: [NodeGuard; N],
    autodiff: DispatchAutodiffContext,
    step: impl FnOnce(Reached<'_, N>) + Send + 'static,
) -> DispatchTensor {
    let kind = with_backend!(value.kind, |B, wrap, value| {
        let step = Step(|ops, grads: &mut Gradients, checkpointer: &Checkpointer| {
            step(Reached {
                ops,
                grads,
                checkpointer,
                grad: |grads, ops| {
                    without_autodiff(wrap(BackendTensor::Float(grads.consume::<B>(&ops.node))))
                },
            });
        });
        let node = Backward::<B, N>::prepare::<NoCheckpointing>(step, parents);
        let value = node.compute_bound().stateless(value.float());
        wrap(BackendTensor::Autodiff(value))
    });
    let kind = kind.expect("the backend of a node is known");
    DispatchTensor {
        kind: DispatchTensorKind::Autodiff(Box::new(kind)),
        autodiff,
    }
}

/// The parent of a node that has fewer: it needs no gradient, and is not on the tape.
#[cfg(feature = "operations")]
pub(crate) fn unused(like: &DispatchTensor) -> NodeGuard {
    guard(&constant(
        Zeros::like(&plain(like.clone())).one(),
        like.autodiff,
    ))
}

/// Number of parents of one node. More parents are combined by nodes that compute nothing.
const WIDTH: usize = 16;

/// Combines guards into one array, which begins with the first ones unchanged. `scalar` is any number
/// on their backend.
pub(crate) fn gathered(
    mut guards: Vec<NodeGuard>,
    scalar: &DispatchTensor,
    autodiff: DispatchAutodiffContext,
) -> [NodeGuard; WIDTH] {
    while guards.len() > WIDTH {
        let rest = guards.split_off(guards.len() - WIDTH);
        let rest: [NodeGuard; WIDTH] = rest.try_into().expect("as many as asked for");
        // The node above it gives its parents their gradients.
        guards.push(guard(&node(scalar.clone(), rest, autodiff, |_| {})));
    }
    if guards.len() < WIDTH {
        let constant = constant(scalar.clone(), autodiff);
        guards.resize_with(WIDTH, || guard(&constant));
    }
    guards.try_into().expect("filled up")
}

/// Takes the sum of the gradients of a node, which has one, on the backend of `like`.
pub(super) fn consume<const N: usize>(
    grads: &mut Gradients,
    ops: &Ops<(), N>,
    like: &DispatchTensor,
) -> DispatchTensor {
    let kind = with_backend!(&like.kind, |B, wrap, _like| {
        wrap(BackendTensor::Float(grads.consume::<B>(&ops.node)))
    });
    without_autodiff(kind.expect("the backend of a gradient is known"))
}

fn without_autodiff(kind: DispatchTensorKind) -> DispatchTensor {
    DispatchTensor {
        kind,
        autodiff: DispatchAutodiffContext::Disabled,
    }
}

/// The backward step of a node.
struct Step<F>(F);

/// Burn asks for it.
impl<F> fmt::Debug for Step<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

impl<B: Backend, const N: usize, F> Backward<B, N> for Step<F>
where
    F: FnOnce(Ops<(), N>, &mut Gradients, &Checkpointer) + Send + 'static,
{
    type State = ();

    fn backward(self, ops: Ops<(), N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        (self.0)(ops, grads, checkpointer);
    }
}

//! The operations: for the processor, for `Autodiff` with a backward, for `GradientRelease`.

use std::cell::RefCell;

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, binary, broadcast_shape};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::tensor::backend::Backend;
use burn::tensor::ops::{ActivationOps, FloatTensor, FloatTensorOps};
use burn::tensor::{Shape, Tensor, TensorMetadata, TensorPrimitive};
use burn_gradient_release::{GradientRelease, ReleaseTensor};

/// Burn's backend, extended by operations.
pub(super) trait FusedOps: Backend {
    /// `relu(lhs × rhs + bias)` as one node.
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The operation with `rhs` transposed: two nodes.
    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `(lhs × rhs) * gate` as one node, which gives `gate` no gradient.
    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `rhs` as it is: no node.
    fn second(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl FusedOps for Flex {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        // A kernel of one's own would be called here.
        Self::relu(Self::float_add(Self::float_matmul(lhs, rhs), bias))
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::fused_matmul_add_relu(lhs, Self::float_transpose(rhs), bias)
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::float_mul(Self::float_matmul(lhs, rhs), gate)
    }

    fn second(_: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        rhs
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct FusedMatmulAddRelu;

        #[derive(Clone, Debug)]
        struct State<B: Backend> {
            lhs: NodeId,
            rhs: NodeId,
            output: FloatTensor<B>,
            bias: Shape,
        }

        impl<B: Backend> Backward<B, 3> for FusedMatmulAddRelu {
            type State = State<B>;

            fn backward(
                self,
                ops: Ops<State<B>, 3>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                note(Event::Backward);
                let grad = grads.consume::<B>(&ops.node);
                let grad = B::relu_backward(ops.state.output, grad);
                let lhs: FloatTensor<B> = checkpointer.retrieve_node_output(ops.state.lhs);
                let rhs: FloatTensor<B> = checkpointer.retrieve_node_output(ops.state.rhs);
                let (lhs_shape, rhs_shape) = (lhs.shape(), rhs.shape());
                let [lhs_node, rhs_node, bias_node] = ops.parents;
                if let Some(node) = lhs_node {
                    let lhs = B::float_matmul(grad.clone(), B::float_transpose(rhs));
                    grads.register::<B>(node.id, broadcast_shape::<B>(lhs, &lhs_shape));
                }
                if let Some(node) = rhs_node {
                    let rhs = B::float_matmul(B::float_transpose(lhs), grad.clone());
                    grads.register::<B>(node.id, broadcast_shape::<B>(rhs, &rhs_shape));
                }
                if let Some(node) = bias_node {
                    grads.register::<B>(node.id, broadcast_shape::<B>(grad, &ops.state.bias));
                }
            }
        }

        match FusedMatmulAddRelu
            .prepare::<C>([lhs.node.clone(), rhs.node.clone(), bias.node.clone()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let (lhs_id, rhs_id) = (prep.checkpoint(&lhs), prep.checkpoint(&rhs));
                let shape = bias.primitive.shape();
                let output = B::fused_matmul_add_relu(lhs.primitive, rhs.primitive, bias.primitive);
                let state = State {
                    lhs: lhs_id,
                    rhs: rhs_id,
                    output: output.clone(),
                    bias: shape,
                };
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::fused_matmul_add_relu(
                lhs.primitive,
                rhs.primitive,
                bias.primitive,
            )),
        }
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::fused_matmul_add_relu(lhs, Self::float_transpose(rhs), bias)
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Gated;

        impl<B: Backend> Backward<B, 2> for Gated {
            type State = (NodeId, NodeId, FloatTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                let (lhs, rhs, gate) = ops.state;
                let lhs = checkpointer.retrieve_node_output(lhs);
                let rhs = checkpointer.retrieve_node_output(rhs);
                let gated = |grad| B::float_mul(grad, gate.clone());
                binary::<B, _, _>(
                    ops.parents,
                    ops.node,
                    grads,
                    |grad| B::float_matmul(gated(grad), B::float_transpose(rhs)),
                    |grad| B::float_matmul(B::float_transpose(lhs), gated(grad)),
                );
            }
        }

        match Gated
            .prepare::<C>([lhs.node.clone(), rhs.node.clone()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let (lhs_id, rhs_id) = (prep.checkpoint(&lhs), prep.checkpoint(&rhs));
                let state = (lhs_id, rhs_id, gate.primitive.clone());
                let output = B::gated(lhs.primitive, rhs.primitive, gate.primitive);
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::gated(lhs.primitive, rhs.primitive, gate.primitive))
            }
        }
    }

    fn second(_: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        rhs
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for GradientRelease<Autodiff<B, C>> {
    fn fused_matmul_add_relu(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, bias], |[lhs, rhs, bias]| {
            Autodiff::<B, C>::fused_matmul_add_relu(lhs, rhs, bias)
        })
    }

    fn fused_transposed(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, bias], |[lhs, rhs, bias]| {
            Autodiff::<B, C>::fused_transposed(lhs, rhs, bias)
        })
    }

    fn gated(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        gate: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs, gate], |[lhs, rhs, gate]| {
            Autodiff::<B, C>::gated(lhs, rhs, gate)
        })
    }

    fn second(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        ReleaseTensor::apply([lhs, rhs], |[lhs, rhs]| Autodiff::<B, C>::second(lhs, rhs))
    }
}

pub(super) type Matrix<B> = Tensor<B, 2>;

pub(super) fn matrix<B: Backend>(tensor: FloatTensor<B>) -> Matrix<B> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn float<B: Backend>(tensor: Matrix<B>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

pub(super) fn fused<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, bias: Matrix<B>) -> Matrix<B> {
    matrix(B::fused_matmul_add_relu(
        float(lhs),
        float(rhs),
        float(bias),
    ))
}

pub(super) fn fused_transposed<B: FusedOps>(
    lhs: Matrix<B>,
    rhs: Matrix<B>,
    bias: Matrix<B>,
) -> Matrix<B> {
    matrix(B::fused_transposed(float(lhs), float(rhs), float(bias)))
}

pub(super) fn gated<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, gate: Matrix<B>) -> Matrix<B> {
    matrix(B::gated(float(lhs), float(rhs), float(gate)))
}

pub(super) fn second<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>) -> Matrix<B> {
    matrix(B::second(float(lhs), float(rhs)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The fused operation ran backward.
    Backward,
    /// A parameter was stepped.
    Step,
}

thread_local! {
    /// Events in their order.
    pub(super) static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

//! The operations: for the processor, for `Autodiff` with a backward, for `GradientRelease`.

use std::cell::RefCell;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, binary, broadcast_shape};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::tensor::ops::{ActivationOps, FloatTensor, FloatTensorOps};
use burn::tensor::{Shape, TensorMetadata, TensorPrimitive};
use burn_gradient_release::{GradientRelease, ReleaseTensor};

use crate::harness::prelude::*;

/// Burn's backend, extended by operations.
pub(super) trait FusedOps: Backend {
    /// `relu(lhs × rhs + bias)` as one node.
    fn fused_matmul_add_relu(lhs_rhs_bias: [FloatTensor<Self>; 3]) -> FloatTensor<Self>;

    /// The operation with `rhs` transposed: two nodes.
    fn fused_transposed([lhs, rhs, bias]: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        Self::fused_matmul_add_relu([lhs, Self::float_transpose(rhs), bias])
    }

    /// `(lhs × rhs) * gate` as one node, which gives `gate` no gradient.
    fn gated(lhs_rhs_gate: [FloatTensor<Self>; 3]) -> FloatTensor<Self>;

    /// `rhs` as it is: no node.
    fn second([_, rhs]: [FloatTensor<Self>; 2]) -> FloatTensor<Self> {
        rhs
    }
}

impl FusedOps for Flex {
    fn fused_matmul_add_relu([lhs, rhs, bias]: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        // A kernel of one's own would be called here.
        Self::relu(Self::float_add(Self::float_matmul(lhs, rhs), bias))
    }

    fn gated([lhs, rhs, gate]: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        Self::float_mul(Self::float_matmul(lhs, rhs), gate)
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_matmul_add_relu([lhs, rhs, bias]: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
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

        let nodes = [&lhs, &rhs, &bias].map(|operand| operand.node.clone());
        match FusedMatmulAddRelu
            .prepare::<C>(nodes)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let (lhs_id, rhs_id) = (prep.checkpoint(&lhs), prep.checkpoint(&rhs));
                let shape = bias.primitive.shape();
                // Copies: Burn frees the node of an operand that no tensor holds, as soon as a backward
                // pass ends on another thread.
                let operands = [&lhs, &rhs, &bias].map(|operand| operand.primitive.clone());
                let output = B::fused_matmul_add_relu(operands);
                let state = State {
                    lhs: lhs_id,
                    rhs: rhs_id,
                    output: output.clone(),
                    bias: shape,
                };
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => {
                let operands = [lhs, rhs, bias].map(|operand| operand.primitive);
                prep.finish(B::fused_matmul_add_relu(operands))
            }
        }
    }

    fn gated([lhs, rhs, gate]: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
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
                let operands = [&lhs, &rhs, &gate].map(|operand| operand.primitive.clone());
                prep.finish(state, B::gated(operands))
            }
            OpsKind::UnTracked(prep) => {
                let operands = [lhs, rhs, gate].map(|operand| operand.primitive);
                prep.finish(B::gated(operands))
            }
        }
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for GradientRelease<Autodiff<B, C>> {
    fn fused_matmul_add_relu(operands: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        ReleaseTensor::apply(operands, Autodiff::<B, C>::fused_matmul_add_relu)
    }

    fn fused_transposed(operands: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        ReleaseTensor::apply(operands, Autodiff::<B, C>::fused_transposed)
    }

    fn gated(operands: [FloatTensor<Self>; 3]) -> FloatTensor<Self> {
        ReleaseTensor::apply(operands, Autodiff::<B, C>::gated)
    }

    fn second(operands: [FloatTensor<Self>; 2]) -> FloatTensor<Self> {
        ReleaseTensor::apply(operands, Autodiff::<B, C>::second)
    }
}

pub(super) type Matrix<B> = Tensor<B, 2>;

fn matrix<B: Backend>(tensor: FloatTensor<B>) -> Matrix<B> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn floats<B: Backend, const N: usize>(operands: [Matrix<B>; N]) -> [FloatTensor<B>; N] {
    operands.map(|operand| operand.into_primitive().tensor())
}

pub(super) fn fused<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, bias: Matrix<B>) -> Matrix<B> {
    matrix(B::fused_matmul_add_relu(floats([lhs, rhs, bias])))
}

pub(super) fn fused_transposed<B: FusedOps>(
    lhs: Matrix<B>,
    rhs: Matrix<B>,
    bias: Matrix<B>,
) -> Matrix<B> {
    matrix(B::fused_transposed(floats([lhs, rhs, bias])))
}

pub(super) fn gated<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>, gate: Matrix<B>) -> Matrix<B> {
    matrix(B::gated(floats([lhs, rhs, gate])))
}

pub(super) fn second<B: FusedOps>(lhs: Matrix<B>, rhs: Matrix<B>) -> Matrix<B> {
    matrix(B::second(floats([lhs, rhs])))
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

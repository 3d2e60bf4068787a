//! Activation functions.

use burn::tensor::{
    Scalar,
    backend::Backend,
    ops::{ActivationOps, FloatTensor},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{GradientRelease, derived, join, tap::Use, tensor::ReleaseTensor};

impl<B: Backend, C: CheckpointStrategy> ActivationOps<Self> for GradientRelease<Autodiff<B, C>> {
    fn leaky_relu(tensor: FloatTensor<Self>, negative_slope: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::leaky_relu(tensor, negative_slope)
        })
    }

    fn relu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::relu)
    }

    fn relu_backward(output: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let [output, grad] = join::operands(Use::Composite, [output, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::relu_backward(output, grad))
    }

    fn gelu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::gelu)
    }

    fn prelu(tensor: FloatTensor<Self>, alpha: FloatTensor<Self>) -> FloatTensor<Self> {
        let [tensor, alpha] = join::operands(Use::Composite, [tensor, alpha]);
        ReleaseTensor::plain(Autodiff::<B, C>::prelu(tensor, alpha))
    }

    fn gelu_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::gelu_backward(x, grad))
    }

    fn sigmoid(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::sigmoid)
    }

    fn sigmoid_backward(output: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let [output, grad] = join::operands(Use::Composite, [output, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::sigmoid_backward(output, grad))
    }

    fn hard_sigmoid(tensor: FloatTensor<Self>, alpha: Scalar, beta: Scalar) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::hard_sigmoid(tensor, alpha, beta)
        })
    }

    fn log_sigmoid(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(tensor, Autodiff::<B, C>::log_sigmoid)
    }

    fn softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| Autodiff::<B, C>::softmax(tensor, dim))
    }

    fn log_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| {
            Autodiff::<B, C>::log_softmax(tensor, dim)
        })
    }

    fn softmin(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        derived::map(tensor, move |tensor| Autodiff::<B, C>::softmin(tensor, dim))
    }

    fn log_sigmoid_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::log_sigmoid_backward(x, grad))
    }
}

//! Activation functions.

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::{exceptions, methods};
use crate::backend::GradientRelease;

burn_gradient_release_decorator::names!();

exceptions! {
    ($)
    composed: leaky_relu relu_backward prelu gelu_backward sigmoid_backward hard_sigmoid softmax
        log_softmax softmin log_sigmoid_backward;
}

impl<B: Backend, C: CheckpointStrategy> ActivationOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::activation_ops!(methods);
}

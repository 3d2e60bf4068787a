//! Operations of neural network modules.

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::{exceptions, methods};
use crate::backend::GradientRelease;

burn_gradient_release_decorator::names!();

exceptions! {
    ($)
    node: embedding linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
        deform_conv2d;
    nodes: embedding_backward attention ctc_loss;
    composed: conv1d_x_backward conv1d_weight_backward conv1d_bias_backward conv2d_x_backward
        conv2d_weight_backward conv2d_bias_backward conv3d_x_backward conv3d_weight_backward
        conv3d_bias_backward conv_transpose1d_x_backward conv_transpose1d_weight_backward
        conv_transpose1d_bias_backward conv_transpose2d_x_backward conv_transpose2d_weight_backward
        conv_transpose2d_bias_backward conv_transpose3d_x_backward conv_transpose3d_weight_backward
        conv_transpose3d_bias_backward unfold4d avg_pool1d_backward adaptive_avg_pool1d_backward
        layer_norm ctc_loss_backward;
}

impl<B: Backend, C: CheckpointStrategy> ModuleOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::module_ops!(methods);
    burn_gradient_release_decorator::same_tensors_module_rest!(Autodiff<B, C>);
}

//! Operations of neural network modules.

use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, FloatTensor, IntTensor, InterpolateOptions, MaxPool1dBackward,
    MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};

use super::forward;
use crate::{
    backend::{RecordableBackend, Recorded},
    recorder::Operation,
};

impl<B: RecordableBackend> ModuleOps<Self> for Recorded<B> {
    burn_decorator::module_ops!(forward);

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }

    fn deform_conv2d_backward(
        x: FloatTensor<Self>,
        offset: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mask: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        output_grad: FloatTensor<Self>,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Self> {
        let mut operation = Operation::begin("deform_conv2d_backward");
        let grads = B::deform_conv2d_backward(
            operation.lower(x),
            operation.lower(offset),
            operation.lower(weight),
            mask.map(|mask| operation.lower(mask)),
            bias.map(|bias| operation.lower(bias)),
            operation.lower(output_grad),
            options,
        );
        DeformConv2dBackward::new(
            operation.raise(grads.x_grad),
            operation.raise(grads.offset_grad),
            operation.raise(grads.weight_grad),
            grads.mask_grad.map(|grad| operation.raise(grad)),
            grads.bias_grad.map(|grad| operation.raise(grad)),
        )
    }

    fn max_pool1d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> MaxPool1dWithIndices<Self> {
        let mut operation = Operation::begin("max_pool1d_with_indices");
        let pooled = B::max_pool1d_with_indices(
            operation.lower(x),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool1dWithIndices::new(
            operation.raise(pooled.output),
            operation.raise(pooled.indices),
        )
    }

    fn max_pool1d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool1dBackward<Self> {
        let mut operation = Operation::begin("max_pool1d_with_indices_backward");
        let grads = B::max_pool1d_with_indices_backward(
            operation.lower(x),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            operation.lower(output_grad),
            operation.lower(indices),
        );
        MaxPool1dBackward::new(operation.raise(grads.x_grad))
    }

    fn max_pool2d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Self> {
        let mut operation = Operation::begin("max_pool2d_with_indices");
        let pooled = B::max_pool2d_with_indices(
            operation.lower(x),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool2dWithIndices::new(
            operation.raise(pooled.output),
            operation.raise(pooled.indices),
        )
    }

    fn max_pool2d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool2dBackward<Self> {
        let mut operation = Operation::begin("max_pool2d_with_indices_backward");
        let grads = B::max_pool2d_with_indices_backward(
            operation.lower(x),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            operation.lower(output_grad),
            operation.lower(indices),
        );
        MaxPool2dBackward::new(operation.raise(grads.x_grad))
    }
}

//! Operations of neural network modules.

use burn::tensor::{
    backend::Backend,
    ops::{
        AttentionModuleOptions, BoolTensor, ConvOptions, ConvTransposeOptions,
        DeformConv2dBackward, DeformConvOptions, FloatTensor, IntTensor, InterpolateOptions,
        MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices,
        ModuleOps, UnfoldOptions,
    },
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{GradientRelease, derived, join, tap::Use, tensor::ReleaseTensor};

impl<B: Backend, C: CheckpointStrategy> ModuleOps<Self> for GradientRelease<Autodiff<B, C>> {
    fn embedding(weights: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        let [weights] = join::operands(Use::Single, [weights]);
        ReleaseTensor::plain(Autodiff::<B, C>::embedding(weights, indices))
    }

    fn embedding_backward(
        weights: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let [weights, output_grad] = join::operands(Use::Composite, [weights, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::embedding_backward(
            weights,
            output_grad,
            indices,
        ))
    }

    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::linear(x, weight, bias))
    }

    fn linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [weight, output_grad] = join::operands(Use::Composite, [weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::linear_x_backward(weight, output_grad))
    }

    fn linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, output_grad] = join::operands(Use::Composite, [x, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::linear_weight_backward(x, output_grad))
    }

    fn linear_bias_backward(output_grad: FloatTensor<Self>) -> FloatTensor<Self> {
        derived::map(output_grad, Autodiff::<B, C>::linear_bias_backward)
    }

    fn conv1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvOptions<1>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv1d(x, weight, bias, options))
    }

    fn conv1d_x_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<1>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv1d_x_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv1d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<1>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv1d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv1d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv1d_bias_backward(x, bias, output_grad))
    }

    fn conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv2d(x, weight, bias, options))
    }

    fn conv2d_x_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv2d_x_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv2d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv2d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv2d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv2d_bias_backward(x, bias, output_grad))
    }

    fn deform_conv2d(
        x: FloatTensor<Self>,
        offset: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mask: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        options: DeformConvOptions<2>,
    ) -> FloatTensor<Self> {
        let ([x, offset, weight], [mask, bias]) =
            join::optional_operands(Use::Single, [x, offset, weight], [mask, bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::deform_conv2d(
            x, offset, weight, mask, bias, options,
        ))
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
        let ([x, offset, weight, output_grad], [mask, bias]) = join::optional_operands(
            Use::Composite,
            [x, offset, weight, output_grad],
            [mask, bias],
        );
        let result = Autodiff::<B, C>::deform_conv2d_backward(
            x,
            offset,
            weight,
            mask,
            bias,
            output_grad,
            options,
        );
        DeformConv2dBackward::new(
            ReleaseTensor::plain(result.x_grad),
            ReleaseTensor::plain(result.offset_grad),
            ReleaseTensor::plain(result.weight_grad),
            result.mask_grad.map(ReleaseTensor::plain),
            result.bias_grad.map(ReleaseTensor::plain),
        )
    }

    fn conv3d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvOptions<3>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv3d(x, weight, bias, options))
    }

    fn conv3d_x_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<3>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv3d_x_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv3d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvOptions<3>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv3d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv3d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv3d_bias_backward(x, bias, output_grad))
    }

    fn conv_transpose1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvTransposeOptions<1>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose1d(x, weight, bias, options))
    }

    fn conv_transpose1d_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<1>,
    ) -> FloatTensor<Self> {
        let [weight, output_grad] = join::operands(Use::Composite, [weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose1d_x_backward(
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose1d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<1>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose1d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose1d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose1d_bias_backward(
            x,
            bias,
            output_grad,
        ))
    }

    fn conv_transpose2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvTransposeOptions<2>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose2d(x, weight, bias, options))
    }

    fn conv_transpose2d_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<2>,
    ) -> FloatTensor<Self> {
        let [weight, output_grad] = join::operands(Use::Composite, [weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose2d_x_backward(
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose2d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<2>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose2d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose2d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose2d_bias_backward(
            x,
            bias,
            output_grad,
        ))
    }

    fn conv_transpose3d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        options: ConvTransposeOptions<3>,
    ) -> FloatTensor<Self> {
        let ([x, weight], [bias]) = join::optional_operands(Use::Single, [x, weight], [bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose3d(x, weight, bias, options))
    }

    fn conv_transpose3d_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<3>,
    ) -> FloatTensor<Self> {
        let [weight, output_grad] = join::operands(Use::Composite, [weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose3d_x_backward(
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose3d_weight_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        options: ConvTransposeOptions<3>,
    ) -> FloatTensor<Self> {
        let [x, weight, output_grad] = join::operands(Use::Composite, [x, weight, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose3d_weight_backward(
            x,
            weight,
            output_grad,
            options,
        ))
    }

    fn conv_transpose3d_bias_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, bias, output_grad] = join::operands(Use::Composite, [x, bias, output_grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::conv_transpose3d_bias_backward(
            x,
            bias,
            output_grad,
        ))
    }

    fn unfold4d(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        options: UnfoldOptions,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::unfold4d(x, kernel_size, options.clone())
        })
    }

    fn avg_pool1d(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::avg_pool1d(
                x,
                kernel_size,
                stride,
                padding,
                count_include_pad,
                ceil_mode,
            )
        })
    }

    fn avg_pool1d_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::avg_pool1d_backward(
            x,
            grad,
            kernel_size,
            stride,
            padding,
            count_include_pad,
            ceil_mode,
        ))
    }

    fn avg_pool2d(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::avg_pool2d(
                x,
                kernel_size,
                stride,
                padding,
                count_include_pad,
                ceil_mode,
            )
        })
    }

    fn avg_pool2d_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::avg_pool2d_backward(
            x,
            grad,
            kernel_size,
            stride,
            padding,
            count_include_pad,
            ceil_mode,
        ))
    }

    fn adaptive_avg_pool2d(x: FloatTensor<Self>, output_size: [usize; 2]) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::adaptive_avg_pool2d(x, output_size)
        })
    }

    fn adaptive_avg_pool2d_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::adaptive_avg_pool2d_backward(x, grad))
    }

    fn adaptive_avg_pool1d(x: FloatTensor<Self>, output_size: usize) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::adaptive_avg_pool1d(x, output_size)
        })
    }

    fn adaptive_avg_pool1d_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::adaptive_avg_pool1d_backward(x, grad))
    }

    fn max_pool1d(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode)
        })
    }

    fn max_pool1d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> MaxPool1dWithIndices<Self> {
        let [x] = join::operands(Use::Composite, [x]);
        let result = Autodiff::<B, C>::max_pool1d_with_indices(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool1dWithIndices::new(ReleaseTensor::plain(result.output), result.indices)
    }

    #[allow(clippy::too_many_arguments)]
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
        let [x, output_grad] = join::operands(Use::Composite, [x, output_grad]);
        let result = Autodiff::<B, C>::max_pool1d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool1dBackward::new(ReleaseTensor::plain(result.x_grad))
    }

    fn max_pool2d(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)
        })
    }

    fn max_pool2d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Self> {
        let [x] = join::operands(Use::Composite, [x]);
        let result = Autodiff::<B, C>::max_pool2d_with_indices(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool2dWithIndices::new(ReleaseTensor::plain(result.output), result.indices)
    }

    #[allow(clippy::too_many_arguments)]
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
        let [x, output_grad] = join::operands(Use::Composite, [x, output_grad]);
        let result = Autodiff::<B, C>::max_pool2d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool2dBackward::new(ReleaseTensor::plain(result.x_grad))
    }

    fn interpolate(
        x: FloatTensor<Self>,
        output_size: [usize; 2],
        options: InterpolateOptions,
    ) -> FloatTensor<Self> {
        derived::map(x, move |x| {
            Autodiff::<B, C>::interpolate(x, output_size, options.clone())
        })
    }

    fn interpolate_backward(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        output_size: [usize; 2],
        options: InterpolateOptions,
    ) -> FloatTensor<Self> {
        let [x, grad] = join::operands(Use::Composite, [x, grad]);
        ReleaseTensor::plain(Autodiff::<B, C>::interpolate_backward(
            x,
            grad,
            output_size,
            options,
        ))
    }

    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        mask: Option<BoolTensor<Self>>,
        attn_bias: Option<FloatTensor<Self>>,
        options: AttentionModuleOptions,
    ) -> FloatTensor<Self> {
        let ([query, key, value], [attn_bias]) =
            join::optional_operands(Use::Composite, [query, key, value], [attn_bias]);
        ReleaseTensor::plain(Autodiff::<B, C>::attention(
            query, key, value, mask, attn_bias, options,
        ))
    }

    fn layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let ([tensor, gamma], [beta]) =
            join::optional_operands(Use::Composite, [tensor, gamma], [beta]);
        ReleaseTensor::plain(Autodiff::<B, C>::layer_norm(tensor, gamma, beta, epsilon))
    }

    fn ctc_loss(
        log_probs: FloatTensor<Self>,
        targets: IntTensor<Self>,
        input_lengths: IntTensor<Self>,
        target_lengths: IntTensor<Self>,
        blank: usize,
    ) -> FloatTensor<Self> {
        let [log_probs] = join::operands(Use::Composite, [log_probs]);
        ReleaseTensor::plain(Autodiff::<B, C>::ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            blank,
        ))
    }

    fn has_ctc_loss_backward() -> bool {
        Autodiff::<B, C>::has_ctc_loss_backward()
    }

    fn ctc_loss_backward(
        log_probs: FloatTensor<Self>,
        targets: IntTensor<Self>,
        input_lengths: IntTensor<Self>,
        target_lengths: IntTensor<Self>,
        grad_loss: FloatTensor<Self>,
        blank: usize,
    ) -> FloatTensor<Self> {
        let [log_probs, grad_loss] = join::operands(Use::Composite, [log_probs, grad_loss]);
        ReleaseTensor::plain(Autodiff::<B, C>::ctc_loss_backward(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            grad_loss,
            blank,
        ))
    }

    fn rfft(
        signal: FloatTensor<Self>,
        dim: usize,
        n: Option<usize>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [signal] = join::operands(Use::Composite, [signal]);
        let (re, im) = Autodiff::<B, C>::rfft(signal, dim, n);
        (ReleaseTensor::plain(re), ReleaseTensor::plain(im))
    }

    fn irfft(
        spectrum_re: FloatTensor<Self>,
        spectrum_im: FloatTensor<Self>,
        dim: usize,
        n: Option<usize>,
    ) -> FloatTensor<Self> {
        let [spectrum_re, spectrum_im] = join::operands(Use::Composite, [spectrum_re, spectrum_im]);
        ReleaseTensor::plain(Autodiff::<B, C>::irfft(spectrum_re, spectrum_im, dim, n))
    }
}

/// The methods of `ModuleOps`: the operations of neural network modules.
///
/// Left out for its type: `has_ctc_loss_backward`.
/// [`same_tensors_module_rest!`](crate::same_tensors_module_rest) forwards it.
#[macro_export]
macro_rules! module_ops {
    ($forward:ident) => {
        $forward! {
            embedding(weights: FloatTensor, indices: IntTensor) -> FloatTensor;
            embedding_backward(
                weights: FloatTensor, output_grad: FloatTensor, indices: IntTensor
            ) -> FloatTensor;
            linear(x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor]) -> FloatTensor;
            linear_x_backward(weight: FloatTensor, output_grad: FloatTensor) -> FloatTensor;
            linear_weight_backward(x: FloatTensor, output_grad: FloatTensor) -> FloatTensor;
            linear_bias_backward(output_grad: FloatTensor) -> FloatTensor;
            conv1d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvOptions<1>)
            ) -> FloatTensor;
            conv1d_x_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<1>)
            ) -> FloatTensor;
            conv1d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<1>)
            ) -> FloatTensor;
            conv1d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            conv2d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvOptions<2>)
            ) -> FloatTensor;
            conv2d_x_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<2>)
            ) -> FloatTensor;
            conv2d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<2>)
            ) -> FloatTensor;
            conv2d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            deform_conv2d(
                x: FloatTensor, offset: FloatTensor, weight: FloatTensor,
                mask: [Option FloatTensor], bias: [Option FloatTensor],
                options: (DeformConvOptions<2>)
            ) -> FloatTensor;
            deform_conv2d_backward(
                x: FloatTensor, offset: FloatTensor, weight: FloatTensor,
                mask: [Option FloatTensor], bias: [Option FloatTensor], output_grad: FloatTensor,
                options: (DeformConvOptions<2>)
            ) -> DeformConv2dBackward;
            conv3d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvOptions<3>)
            ) -> FloatTensor;
            conv3d_x_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<3>)
            ) -> FloatTensor;
            conv3d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvOptions<3>)
            ) -> FloatTensor;
            conv3d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            conv_transpose1d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvTransposeOptions<1>)
            ) -> FloatTensor;
            conv_transpose1d_x_backward(
                weight: FloatTensor, output_grad: FloatTensor, options: (ConvTransposeOptions<1>)
            ) -> FloatTensor;
            conv_transpose1d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvTransposeOptions<1>)
            ) -> FloatTensor;
            conv_transpose1d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            conv_transpose2d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvTransposeOptions<2>)
            ) -> FloatTensor;
            conv_transpose2d_x_backward(
                weight: FloatTensor, output_grad: FloatTensor, options: (ConvTransposeOptions<2>)
            ) -> FloatTensor;
            conv_transpose2d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvTransposeOptions<2>)
            ) -> FloatTensor;
            conv_transpose2d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            conv_transpose3d(
                x: FloatTensor, weight: FloatTensor, bias: [Option FloatTensor],
                options: (ConvTransposeOptions<3>)
            ) -> FloatTensor;
            conv_transpose3d_x_backward(
                weight: FloatTensor, output_grad: FloatTensor, options: (ConvTransposeOptions<3>)
            ) -> FloatTensor;
            conv_transpose3d_weight_backward(
                x: FloatTensor, weight: FloatTensor, output_grad: FloatTensor,
                options: (ConvTransposeOptions<3>)
            ) -> FloatTensor;
            conv_transpose3d_bias_backward(
                x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor
            ) -> FloatTensor;
            unfold4d(
                x: FloatTensor, kernel_size: ([usize; 2]), options: UnfoldOptions
            ) -> FloatTensor;
            avg_pool1d(
                x: FloatTensor, kernel_size: usize, stride: usize, padding: usize,
                count_include_pad: bool, ceil_mode: bool
            ) -> FloatTensor;
            avg_pool1d_backward(
                x: FloatTensor, grad: FloatTensor, kernel_size: usize, stride: usize,
                padding: usize, count_include_pad: bool, ceil_mode: bool
            ) -> FloatTensor;
            avg_pool2d(
                x: FloatTensor, kernel_size: ([usize; 2]), stride: ([usize; 2]),
                padding: ([usize; 2]), count_include_pad: bool, ceil_mode: bool
            ) -> FloatTensor;
            avg_pool2d_backward(
                x: FloatTensor, grad: FloatTensor, kernel_size: ([usize; 2]), stride: ([usize; 2]),
                padding: ([usize; 2]), count_include_pad: bool, ceil_mode: bool
            ) -> FloatTensor;
            adaptive_avg_pool2d(x: FloatTensor, output_size: ([usize; 2])) -> FloatTensor;
            adaptive_avg_pool2d_backward(x: FloatTensor, grad: FloatTensor) -> FloatTensor;
            adaptive_avg_pool1d(x: FloatTensor, output_size: usize) -> FloatTensor;
            adaptive_avg_pool1d_backward(x: FloatTensor, grad: FloatTensor) -> FloatTensor;
            max_pool1d(
                x: FloatTensor, kernel_size: usize, stride: usize, padding: usize, dilation: usize,
                ceil_mode: bool
            ) -> FloatTensor;
            max_pool1d_with_indices(
                x: FloatTensor, kernel_size: usize, stride: usize, padding: usize, dilation: usize,
                ceil_mode: bool
            ) -> MaxPool1dWithIndices;
            max_pool1d_with_indices_backward(
                x: FloatTensor, kernel_size: usize, stride: usize, padding: usize, dilation: usize,
                ceil_mode: bool, output_grad: FloatTensor, indices: IntTensor
            ) -> MaxPool1dBackward;
            max_pool2d(
                x: FloatTensor, kernel_size: ([usize; 2]), stride: ([usize; 2]),
                padding: ([usize; 2]), dilation: ([usize; 2]), ceil_mode: bool
            ) -> FloatTensor;
            max_pool2d_with_indices(
                x: FloatTensor, kernel_size: ([usize; 2]), stride: ([usize; 2]),
                padding: ([usize; 2]), dilation: ([usize; 2]), ceil_mode: bool
            ) -> MaxPool2dWithIndices;
            max_pool2d_with_indices_backward(
                x: FloatTensor, kernel_size: ([usize; 2]), stride: ([usize; 2]),
                padding: ([usize; 2]), dilation: ([usize; 2]), ceil_mode: bool,
                output_grad: FloatTensor, indices: IntTensor
            ) -> MaxPool2dBackward;
            interpolate(
                x: FloatTensor, output_size: ([usize; 2]), options: InterpolateOptions
            ) -> FloatTensor;
            interpolate_backward(
                x: FloatTensor, grad: FloatTensor, output_size: ([usize; 2]),
                options: InterpolateOptions
            ) -> FloatTensor;
            attention(
                query: FloatTensor, key: FloatTensor, value: FloatTensor, mask: [Option BoolTensor],
                attn_bias: [Option FloatTensor], options: AttentionModuleOptions
            ) -> FloatTensor;
            layer_norm(
                tensor: FloatTensor, gamma: FloatTensor, beta: [Option FloatTensor], epsilon: f64
            ) -> FloatTensor;
            ctc_loss(
                log_probs: FloatTensor, targets: IntTensor, input_lengths: IntTensor,
                target_lengths: IntTensor, blank: usize
            ) -> FloatTensor;
            ctc_loss_backward(
                log_probs: FloatTensor, targets: IntTensor, input_lengths: IntTensor,
                target_lengths: IntTensor, grad_loss: FloatTensor, blank: usize
            ) -> FloatTensor;
            rfft(signal: FloatTensor, dim: usize, n: (Option<usize>)) -> [FloatTensor, FloatTensor];
            irfft(
                spectrum_re: FloatTensor, spectrum_im: FloatTensor, dim: usize, n: (Option<usize>)
            ) -> FloatTensor;
        }
    };
}

//! The operations, forwarded: all but one.

#![deny(clippy::missing_trait_methods)]

use burn::tensor::TensorMetadata;

use crate::FlatLinear;

burn_gradient_release_decorator::names!();

/// Makes a method of each operation in a table, which runs it on the backend below.
macro_rules! forward {
    ($($name:ident $arguments:tt -> $output:tt;)*) => {
        $(method!($name $arguments -> $output);)*
    };
}

macro_rules! method {
    (linear_weight_backward $arguments:tt -> $output:tt) => {};
    ($($method:tt)*) => {
        burn_gradient_release_decorator::same_tensors_method!(B, $($method)*);
    };
}

impl<B: Backend> ModuleOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::module_ops!(forward);

    /// `x` is `[.., in]`, `output_grad` `[.., out]`; the result is `[in, out]`.
    fn linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let rows = |tensor: FloatTensor<Self>| {
            let shape = tensor.shape();
            let last = shape.num_dims() - 1;
            // Not by a division: the width may be 0.
            let rows = shape[..last].iter().product();
            B::float_reshape(tensor, Shape::new([rows, shape[last]]))
        };
        let x = B::float_swap_dims(rows(x), 0, 1);
        B::float_matmul(x, rows(output_grad))
    }

    burn_gradient_release_decorator::same_tensors_module_rest!(B);
}

impl<B: Backend> ActivationOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::activation_ops!(forward);
}

impl<B: Backend> FloatTensorOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::float_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_float_rest!(B);
}

impl<B: Backend> IntTensorOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::int_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_int_rest!(B);
}

impl<B: Backend> BoolTensorOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_bool_rest!(B);
}

impl<B: Backend> QTensorOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_quantize!(B);
    burn_gradient_release_decorator::same_tensors_quantized_rest!(B);
}

impl<B: Backend> TransactionOps<Self> for FlatLinear<B> {
    burn_gradient_release_decorator::same_tensors_transaction!(B);
}

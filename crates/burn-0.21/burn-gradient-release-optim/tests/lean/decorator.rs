//! A backend that has no pass.

use std::marker::PhantomData;

use burn::backend::Flex;
use burn_gradient_release_optim::LeanBackend;

burn_gradient_release_decorator::names!();

/// Flex with nothing but what every backend has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WithoutPass<B> {
    below: PhantomData<B>,
}

impl LeanBackend for WithoutPass<Flex> {}

impl<B: Backend> BackendTypes for WithoutPass<B> {
    type Device = B::Device;
    type FloatTensorPrimitive = B::FloatTensorPrimitive;
    type FloatElem = B::FloatElem;
    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;
    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;
    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

impl<B: Backend> Backend for WithoutPass<B> {
    burn_gradient_release_decorator::backend_methods!(B);

    fn name(device: &Self::Device) -> String {
        format!("without-pass<{}>", B::name(device))
    }
}

/// Makes a method of each operation in a table, which runs it on the backend below.
macro_rules! forward {
    ($($name:ident $arguments:tt -> $output:tt;)*) => {
        $(burn_gradient_release_decorator::same_tensors_method!(B, $name $arguments -> $output);)*
    };
}

impl<B: Backend> ModuleOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::module_ops!(forward);
    burn_gradient_release_decorator::same_tensors_module_rest!(B);
}

impl<B: Backend> ActivationOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::activation_ops!(forward);
}

impl<B: Backend> FloatTensorOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::float_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_float_rest!(B);
}

impl<B: Backend> IntTensorOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::int_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_int_rest!(B);
}

impl<B: Backend> BoolTensorOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_bool_rest!(B);
}

impl<B: Backend> QTensorOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_quantize!(B);
    burn_gradient_release_decorator::same_tensors_quantized_rest!(B);
}

impl<B: Backend> TransactionOps<Self> for WithoutPass<B> {
    burn_gradient_release_decorator::same_tensors_transaction!(B);
}

//! The gradient of a `Linear`'s weight as one matrix product.
//!
//! Burn 0.21 computes it for each element of the batch and adds up, with a temporary of `batch`
//! times the weight. [`FlatLinear`] flattens batch and time first.
#![forbid(unsafe_code)]

mod ops;

use std::marker::PhantomData;

use burn::tensor::{
    DType, TensorData,
    backend::{Backend, BackendTypes, DTypeUsageSet, ExecutionError},
};

/// A backend that computes the gradient of a `Linear`'s weight as one matrix product.
///
/// A backend decorator around the innermost backend: `Autodiff<FlatLinear<Flex>>`. It keeps the
/// backend's tensors and forwards every other operation. Gradients of weights differ from the
/// backend's own by rounding: the same products are added up in another order.
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::LinearConfig,
///     tensor::{Distribution, Tensor},
/// };
/// use burn_gradient_release_flat_linear::FlatLinear;
///
/// type B = Autodiff<FlatLinear<Flex>>;
/// let device = Default::default();
/// let linear = LinearConfig::new(4, 2).init::<B>(&device);
/// // `[batch, time, in]`
/// let x = Tensor::<B, 3>::random([8, 16, 4], Distribution::Default, &device);
/// let gradients = linear.forward(x).sum().backward();
/// assert_eq!(linear.weight.grad(&gradients).unwrap().dims(), [4, 2]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FlatLinear<B> {
    _below: PhantomData<B>,
}

impl<B: Backend> BackendTypes for FlatLinear<B> {
    type Device = B::Device;

    type FloatTensorPrimitive = B::FloatTensorPrimitive;
    type FloatElem = B::FloatElem;

    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;

    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;

    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for FlatLinear<B> {
    burn_gradient_release_decorator::backend_methods!(B);

    fn name(device: &Self::Device) -> String {
        format!("flat-linear<{}>", B::name(device))
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

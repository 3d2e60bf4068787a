//! The backends below autodiff, as far as Burn's `Dispatch` knows them.
//!
//! A [`DispatchTensor`] is a float of any rank on any of them, and `Dispatch` computes with it. Only
//! Burn's tape asks for the backend by its type: [`with_backend`].

use std::mem::discriminant;

use burn::Tensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, DispatchTensorKind, TensorMetadata};
#[cfg(feature = "operations")]
use burn::tensor::Device;

use crate::wide::widened;

/// Runs code with the type of a backend, the constructor of its kind, and its tensor. `None` if
/// burn-lean was compiled without the backend.
macro_rules! with_backend {
    ($kind:expr, |$backend:ident, $wrap:ident, $tensor:ident| $run:expr) => {{
        use burn::backend::DispatchTensorKind as Kind;
        #[allow(unreachable_patterns)] // With one backend there is no other.
        #[allow(deprecated)] // Burn 0.22 deprecates NdArray.
        match $kind {
            #[cfg(feature = "flex")]
            Kind::Flex($tensor) => {
                #[allow(unused_imports)]
                use {Kind::Flex as $wrap, burn::backend::Flex as $backend};
                Some($run)
            }
            #[cfg(feature = "ndarray")]
            Kind::NdArray($tensor) => {
                #[allow(unused_imports)]
                use {Kind::NdArray as $wrap, burn::backend::NdArray as $backend};
                Some($run)
            }
            #[cfg(feature = "cube")]
            Kind::Cube($tensor) => {
                #[allow(unused_imports)]
                use {Kind::Cube as $wrap, burn::backend::Cube as $backend};
                Some($run)
            }
            _ => None,
        }
    }};
}
pub(crate) use with_backend;

/// The kind of the backend: tensors with autodiff have it in a box.
pub(crate) fn kind_of_backend(kind: &DispatchTensorKind) -> &DispatchTensorKind {
    match kind {
        DispatchTensorKind::Autodiff(kind) => kind,
        kind => kind,
    }
}

pub(crate) fn is_same_backend(one: &DispatchTensor, other: &DispatchTensor) -> bool {
    let backend = |tensor: &DispatchTensor| discriminant(kind_of_backend(&tensor.kind));
    backend(one) == backend(other)
}

/// Whether the device of a tensor computes while the program goes on, so that reading waits for it.
pub(crate) fn reading_waits(tensor: &DispatchTensor) -> bool {
    #[allow(unreachable_patterns)] // Not every backend is compiled in.
    match kind_of_backend(&tensor.kind) {
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => true,
        _ => false,
    }
}

#[cfg(feature = "operations")]
pub(crate) fn is_on_flex<const D: usize>(tensor: &Tensor<D>) -> bool {
    #[allow(unreachable_patterns)] // With one backend there is no other.
    match kind_of_backend(&tensor.clone().into_dispatch().kind) {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        _ => false,
    }
}

/// A tensor without autodiff as a constant for tensors of `device`, which may have it.
#[cfg(feature = "operations")]
pub(crate) fn constant<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match device.is_autodiff() {
        true => Tensor::from_inner(tensor),
        false => tensor,
    }
}

/// The tensor without autodiff.
pub(crate) fn plain(tensor: DispatchTensor) -> DispatchTensor {
    // Any rank will do.
    Tensor::<1>::from_dispatch(tensor).inner().into_dispatch()
}

/// The sum of the gradients that exist, the earlier one first, as in Burn's accumulator.
pub(crate) fn added(
    sum: Option<DispatchTensor>,
    grad: Option<DispatchTensor>,
) -> Option<DispatchTensor> {
    match (sum, grad) {
        // One of them is in half precision, and the other in f32.
        (Some(sum), Some(grad)) if sum.dtype() != grad.dtype() => {
            Some(Dispatch::float_add(in_f32(sum), in_f32(grad)))
        }
        (Some(sum), Some(grad)) => Some(Dispatch::float_add(sum, grad)),
        (sum, grad) => sum.or(grad),
    }
}

/// A gradient in half precision as f32.
pub(crate) fn in_f32(grad: DispatchTensor) -> DispatchTensor {
    // Any rank will do.
    widened(Tensor::<1>::from_dispatch(grad)).into_dispatch()
}

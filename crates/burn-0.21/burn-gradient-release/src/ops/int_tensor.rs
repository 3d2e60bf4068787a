//! Operations on int tensors, forwarded. Random tensors are logged if a forward pass runs twice.

use std::ops::Range;

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, Device, FloatTensor, IntTensor, IntTensorOps},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::{exceptions, methods};
use crate::{backend::GradientRelease, lower::random};

exceptions! {
    ($)
    value: int_into_float int_max_dim_with_indices int_min_dim_with_indices int_sort_with_indices;
    own: int_random;
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> IntTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::int_tensor_ops!(methods);

    fn int_random(
        shape: Shape,
        distribution: Distribution,
        device: &Device<Self>,
        dtype: IntDType,
    ) -> IntTensor<Self> {
        random::int::<B>(shape.clone(), distribution, || {
            B::int_random(shape, distribution, device, dtype)
        })
    }

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::int_into_data(tensor)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        Autodiff::<B, C>::int_device(tensor)
    }
}

//! Operations on int tensors, forwarded.

use std::ops::Range;

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, Device, FloatTensor, IntTensor, IntTensorOps},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::forward;
use crate::GradientRelease;

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> IntTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_decorator::int_tensor_ops!(forward);

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::int_into_data(tensor)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        Autodiff::<B, C>::int_device(tensor)
    }
}

//! Operations on bool tensors, forwarded.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Scalar, Shape, Slice, TensorData,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, BoolTensorOps, Device, FloatTensor, IntTensor},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::forward;
use crate::backend::GradientRelease;

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> BoolTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::bool_into_data(tensor)
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        Autodiff::<B, C>::bool_device(tensor)
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        Autodiff::<B, C>::bool_argwhere(tensor, out_dtype)
    }
}

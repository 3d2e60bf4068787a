//! Operations on quantized tensors, forwarded.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Scalar, Shape, Slice, TensorData, TensorPrimitive,
    backend::{Backend, ExecutionError},
    ops::{BoolTensor, Device, FloatTensor, IntTensor, QTensorOps, QuantizedTensor},
    quantization::{QuantScheme, QuantizationParametersPrimitive},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use super::forward;
use crate::backend::GradientRelease;

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> QTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        Autodiff::<B, C>::quantize(
            tensor.into_autodiff(),
            scheme,
            QuantizationParametersPrimitive {
                scales: qparams.scales.into_autodiff(),
            },
        )
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Autodiff::<B, C>::q_into_data(tensor)
    }

    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        Autodiff::<B, C>::q_device(tensor)
    }

    fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
        Autodiff::<B, C>::q_is_require_grad(tensor)
    }
}

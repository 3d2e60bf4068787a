//! Operations on quantized tensors.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Scalar, Shape, Slice, TensorData, TensorPrimitive,
    backend::ExecutionError,
    ops::{BoolTensor, Device, FloatTensor, IntTensor, QTensorOps, QuantizedTensor},
    quantization::{QuantScheme, QuantizationParametersPrimitive},
};

use super::forward;
use crate::{
    backend::{RecordableBackend, Recorded},
    recorder::Operation,
};

impl<B: RecordableBackend> QTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let mut operation = Operation::begin("quantize");
        B::quantize(
            operation.lower(tensor),
            scheme,
            QuantizationParametersPrimitive {
                scales: operation.lower(qparams.scales),
            },
        )
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::q_into_data(tensor)
    }

    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        B::q_device(tensor)
    }

    fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
        B::q_is_require_grad(tensor)
    }
}

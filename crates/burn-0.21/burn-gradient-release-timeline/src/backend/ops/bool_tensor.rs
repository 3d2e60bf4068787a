//! Operations on bool tensors.

use burn::tensor::{
    BoolDType, FloatDType, IntDType, Scalar, Shape, Slice, TensorData,
    backend::ExecutionError,
    ops::{BoolTensor, BoolTensorOps, Device, FloatTensor, IntTensor},
};

use super::forward;
use crate::{
    backend::{RecordableBackend, Recorded},
    recorder::{self, Operation},
};

impl<B: RecordableBackend> BoolTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::bool_into_data(tensor.below)
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::bool_device(&tensor.below)
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        let mut operation = Operation::begin("bool_argwhere");
        let positions = B::bool_argwhere(operation.lower(tensor), out_dtype);
        async move { operation.raise(positions.await) }
    }
}

//! Operations on int tensors.

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData,
    backend::ExecutionError,
    ops::{BoolTensor, Device, FloatTensor, IntTensor, IntTensorOps},
};

use std::ops::Range;

use super::forward;
use crate::{
    backend::{RecordableBackend, Recorded},
    recorder,
};

impl<B: RecordableBackend> IntTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::int_tensor_ops!(forward);

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::int_into_data(tensor.below)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::int_device(&tensor.below)
    }
}

//! Operations on float tensors.

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData,
    backend::ExecutionError,
    ops::{BoolTensor, Device, FloatTensor, FloatTensorOps, GridSampleOptions, IntTensor},
};

use super::forward;
use crate::{
    backend::{RecordableBackend, Recorded},
    recorder,
};

impl<B: RecordableBackend> FloatTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::float_tensor_ops!(forward);

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::float_into_data(tensor.below)
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::float_device(&tensor.below)
    }

    fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
        B::float_is_require_grad(&tensor.below)
    }
}

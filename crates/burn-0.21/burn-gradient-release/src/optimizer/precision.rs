//! Gradients are divided by the scale of the loss in 32 bits.

use burn::{
    module::AutodiffModule,
    tensor::{DType, TensorMetadata},
};

use super::session::find_trained;
use crate::{ReleaseBackend, error::ReleaseError, groups::path_of, tensor::ReleaseTensor};

/// Refuses a model whose trained weights are in fp16, as PyTorch's `GradScaler` does: so are their
/// gradients, and small values that the scale kept from vanishing would vanish when it is divided
/// out.
pub(super) fn check_precision<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
) -> Result<(), ReleaseError> {
    let is_half = |param, tensor: ReleaseTensor<_>| (tensor.dtype() == DType::F16).then_some(param);
    match find_trained::<B, M, _>(model, is_half) {
        Some(param) => Err(ReleaseError::HalfPrecision {
            path: path_of::<B, M>(model, param),
        }),
        None => Ok(()),
    }
}

//! Gradients are divided by the scale of the loss in 32 bits.

use burn::{
    module::AutodiffModule,
    tensor::{DType, TensorMetadata},
};

use super::session::check_params;
use crate::{ReleaseBackend, error::ReleaseError, groups::path_of};

/// Refuses a model whose trained weights are in fp16, as PyTorch's `GradScaler` does: so are their
/// gradients, and small values that the scale kept from vanishing would vanish when it is divided
/// out.
pub(super) fn check_precision<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
) -> Result<(), ReleaseError> {
    check_params::<B, M>(model, |param, tensor| {
        (tensor.dtype() == DType::F16).then(|| ReleaseError::HalfPrecision {
            path: path_of::<B, M>(model, param),
        })
    })
}

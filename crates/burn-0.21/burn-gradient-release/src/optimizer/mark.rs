//! Armed parameters bear no [mark](crate::tape::mark): at the end of backward, where Burn waits for
//! the gradients of marked parameters, theirs are gone.

use burn::{
    module::{AutodiffModule, ParamId},
    tensor::Tensor,
};

use super::session::{check_params, wrap};
use crate::{ReleaseBackend, error::ReleaseError};

/// Refuses a model with marked parameters.
pub(super) fn check_unmarked<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
) -> Result<(), ReleaseError> {
    if cfg!(not(feature = "distributed")) {
        return Ok(());
    }
    check_params::<B, M>(model, |param, tensor| {
        is_marked(&wrap::<B, 1>(tensor)).then_some(ReleaseError::Distributed { param })
    })
}

#[cfg(feature = "distributed")]
pub(super) fn is_marked<B: ReleaseBackend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    tensor.is_distributed()
}

#[cfg(not(feature = "distributed"))]
pub(super) fn is_marked<B: ReleaseBackend, const D: usize>(_: &Tensor<B, D>) -> bool {
    false
}

/// The parameter with its mark, which Burn's optimizers restore as well.
#[cfg(feature = "distributed")]
pub(super) fn mark<B: ReleaseBackend, const D: usize>(
    param: ParamId,
    tensor: Tensor<B, D>,
) -> Tensor<B, D> {
    tensor.set_distributed(param.val().into())
}

#[cfg(not(feature = "distributed"))]
pub(super) fn mark<B: ReleaseBackend, const D: usize>(
    _: ParamId,
    tensor: Tensor<B, D>,
) -> Tensor<B, D> {
    tensor
}

//! Armed parameters bear no [mark](crate::tape::mark): at the end of backward, where Burn waits for
//! the gradients of marked parameters, theirs are gone.

use burn::{
    module::{AutodiffModule, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};

use crate::{ReleaseBackend, error::ReleaseError};

/// Refuses a model with marked parameters.
pub(super) fn check_unmarked<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
) -> Result<(), ReleaseError> {
    struct Find(Option<ParamId>);

    impl<B: ReleaseBackend> ModuleVisitor<B> for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.0.is_none() && param.is_require_grad() && is_marked(&param.val()) {
                self.0 = Some(param.id);
            }
        }
    }

    if cfg!(not(feature = "distributed")) {
        return Ok(());
    }
    let mut find = Find(None);
    model.visit(&mut find);
    match find.0 {
        Some(param) => Err(ReleaseError::Distributed { param }),
        None => Ok(()),
    }
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

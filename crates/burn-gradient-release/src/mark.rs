//! The mark on parameters whose gradients Burn itself reduces over devices: `Tensor::set_distributed`.
//!
//! Burn registers marked parameters when a backward pass begins, and waits for their gradients at its
//! end. What is armed has no gradient by then, so it bears no mark. Without the feature `distributed`
//! nothing does.

use burn::{
    module::{AutodiffModule, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, backend::Backend},
};
use burn_autodiff::grads::Gradients;

use crate::{ReleaseBackend, ReleaseError, tape::AdTensor};

/// Refuses a model with marked parameters.
pub(crate) fn check_unmarked<B: ReleaseBackend, M: AutodiffModule<B>>(
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
pub(crate) fn is_marked<B: ReleaseBackend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    tensor.is_distributed()
}

#[cfg(not(feature = "distributed"))]
pub(crate) fn is_marked<B: ReleaseBackend, const D: usize>(_: &Tensor<B, D>) -> bool {
    false
}

/// The parameter with its mark, as Burn's optimizers put it on again.
#[cfg(feature = "distributed")]
pub(crate) fn mark<B: ReleaseBackend, const D: usize>(
    param: ParamId,
    tensor: Tensor<B, D>,
) -> Tensor<B, D> {
    tensor.set_distributed(param.val().into())
}

#[cfg(not(feature = "distributed"))]
pub(crate) fn mark<B: ReleaseBackend, const D: usize>(
    _: ParamId,
    tensor: Tensor<B, D>,
) -> Tensor<B, D> {
    tensor
}

/// Refuses marked parameters in a backward pass of several parts: Burn would reduce what adds up in one
/// part, or nothing.
///
/// # Panics
///
/// If there are any below the part that gave these gradients.
#[cfg(feature = "distributed")]
pub(crate) fn check_part(grads: &Gradients) {
    assert!(!grads.is_distributed(), "{IN_PARTS}");
}

/// Refuses a marked parameter that enters a region of its own.
///
/// # Panics
///
/// As [`check_part`].
#[cfg(feature = "distributed")]
pub(crate) fn check_entering<B: Backend>(tensor: &AdTensor<B>) {
    assert!(tensor.node.distributed_params.is_none(), "{IN_PARTS}");
}

#[cfg(not(feature = "distributed"))]
pub(crate) fn check_entering<B: Backend>(_: &AdTensor<B>) {}

#[cfg(feature = "distributed")]
const IN_PARTS: &str = "gradient release: a parameter is marked as distributed, and activations are \
    recomputed: its gradient would come from a backward pass in parts, which Burn cannot reduce; do \
    without `checkpoint` and `Recompute`, or take the mark off with `model.fork(&device)` and give \
    the optimizer a reduction (`with_reduction`)";

#[cfg(not(feature = "distributed"))]
pub(crate) fn check_part(_: &Gradients) {}

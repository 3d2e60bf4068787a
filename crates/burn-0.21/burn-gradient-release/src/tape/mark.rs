//! The mark on parameters whose gradients Burn itself reduces over devices:
//! `Tensor::set_distributed`.
//!
//! Burn registers the marked parameters of a tape when a backward pass begins, and waits for their
//! gradients at its end. Without the feature `distributed` there are no marks.

use burn::tensor::backend::Backend;
use burn_autodiff::grads::Gradients;

use crate::tape::AdTensor;

/// Refuses marked parameters in a backward pass of several parts: Burn would reduce the gradient of
/// one part only, or none.
///
/// # Panics
///
/// If the part of the tape that gave these gradients has any.
#[cfg(feature = "distributed")]
pub(crate) fn check_part(grads: &Gradients) {
    assert!(!grads.is_distributed(), "{IN_PARTS}");
}

/// Refuses a marked parameter that enters a subgraph of its own.
///
/// # Panics
///
/// If the parameter is marked, as [`check_part`] does.
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

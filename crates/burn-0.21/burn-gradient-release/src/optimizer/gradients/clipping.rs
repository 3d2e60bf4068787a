//! Clipping by norms other than that of a single gradient.

use burn::tensor::{Tensor, backend::Backend};
use lean_arithmetic::clipping::AdaptiveRule;

use super::norm::widened;

lean_arithmetic::clipping_configurations!("use a group for it");

/// Multiplies a gradient by a coefficient below one. The coefficient is of 32 bits at least: half
/// precision would round it by as much as the product.
pub(super) fn scaled<B: Backend, const D: usize>(
    grad: Tensor<B, D>,
    coefficient: f64,
) -> Tensor<B, D> {
    match coefficient < 1.0 {
        true => widened(grad) * coefficient,
        false => grad,
    }
}

/// Scales the gradient of each unit to the norm that the unit's weights allow, which is computed in
/// 32 bits at least: the square of 300 is infinite in `f16`.
pub(super) fn clip_units<B: Backend, const D: usize>(
    config: &AdaptiveClippingConfig,
    weight: Tensor<B, D>,
    grad: Tensor<B, D>,
) -> Tensor<B, D> {
    let (weight, grad) = (widened(weight), widened(grad));
    let allowed = unit_norms(weight).clamp_min(config.eps) * config.clip_factor;
    let norms = unit_norms(grad.clone()).clamp_min(AdaptiveRule::MIN_GRAD_NORM);
    grad * (allowed / norms).clamp_max(1.0)
}

fn unit_norms<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    AdaptiveRule::dims_of_unit(D)
        .fold(tensor.square(), |sums, dim| sums.sum_dim(dim))
        .sqrt()
}

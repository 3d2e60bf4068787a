//! Clipping by norms of several gradients or of units.

use burn::Tensor;
use lean_arithmetic::clipping::AdaptiveRule;

use crate::wide::widened;

lean_arithmetic::clipping_configurations!("here it is clipped like the others");

/// Multiplies a gradient by a coefficient below one. The coefficient is of 32 bits at least: half
/// precision would round it by as much as the product.
pub(super) fn scaled<const D: usize>(grad: Tensor<D>, coefficient: f64) -> Tensor<D> {
    match coefficient < 1.0 {
        true => {
            let dtype = grad.dtype();
            (widened(grad) * coefficient).cast(dtype)
        }
        false => grad,
    }
}

/// Scales the gradient of each unit to the norm that the unit's weights allow, which is computed in
/// 32 bits at least: the square of 300 is infinite in `f16`.
pub(super) fn clip_units<const D: usize>(
    config: &AdaptiveClippingConfig,
    weight: Tensor<D>,
    grad: Tensor<D>,
) -> Tensor<D> {
    let dtype = grad.dtype();
    let (weight, grad) = (widened(weight), widened(grad));
    let allowed = unit_norms(weight).clamp_min(config.eps) * config.clip_factor;
    let norms = unit_norms(grad.clone()).clamp_min(AdaptiveRule::MIN_GRAD_NORM);
    (grad * (allowed / norms).clamp_max(1.0)).cast(dtype)
}

fn unit_norms<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    AdaptiveRule::dims_of_unit(D)
        .fold(tensor.square(), |sums, dim| sums.sum_dim(dim))
        .sqrt()
}

//! Clipping by norms of several gradients or of units.

use burn::Tensor;
use lean_arithmetic::clipping::AdaptiveRule;
use lean_arithmetic::norm::factors;

use super::norm::scale;
use crate::wide::widened;

lean_arithmetic::clipping_configurations!("here it is clipped like the others");

/// Multiplies a gradient by a coefficient below one. The coefficient is of 32 bits at least: half
/// precision would round it by as much as the product.
pub(super) fn scaled<const D: usize>(grad: Tensor<D>, coefficient: f64) -> Tensor<D> {
    match coefficient < 1.0 {
        true => {
            let dtype = grad.dtype();
            let [first, second] = factors(coefficient);
            let grad = match first < 1.0 {
                true => widened(grad) * first,
                false => widened(grad),
            };
            (grad * second).cast(dtype)
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
    if grad.shape().num_elements() == 0 {
        return grad;
    }
    let dtype = grad.dtype();
    let (weight, grad) = (widened(weight), widened(grad));
    let of_weight = unit_scales(&weight);
    let allowed = unit_norms(weight * of_weight.clone()) / of_weight;
    let allowed = allowed.clamp_min(config.eps) * config.clip_factor;
    // A gradient that would have to be scaled up has the least norm that counts.
    let scale = unit_scales(&grad).clamp_max(1.0);
    let grad = grad * scale.clone();
    let least = scale.clone() * AdaptiveRule::MIN_GRAD_NORM;
    let norms = unit_norms(grad.clone()).max_pair(least);
    (grad * (allowed / norms).min_pair(scale.recip())).cast(dtype)
}

fn unit_norms<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    AdaptiveRule::dims_of_unit(D)
        .fold(tensor.square(), |sums, dim| sums.sum_dim(dim))
        .sqrt()
}

fn unit_scales<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    let dims = || AdaptiveRule::dims_of_unit(D);
    let most = dims().fold(tensor.clone(), |most, dim| most.max_dim(dim));
    let least = dims().fold(tensor.clone(), |least, dim| least.min_dim(dim));
    scale(most.max_pair(-least))
}

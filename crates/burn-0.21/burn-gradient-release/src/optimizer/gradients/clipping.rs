//! Clipping by norms other than that of a single gradient.

use burn::tensor::{Tensor, backend::Backend};
use lean_arithmetic::{clipping::AdaptiveRule, norm::factors};

use super::norm::{scale, widened};

lean_arithmetic::clipping_configurations!("use a group for it");

/// Multiplies a gradient by a coefficient below one. The coefficient is of 32 bits at least: half
/// precision would round it by as much as the product.
pub(super) fn scaled<B: Backend, const D: usize>(
    grad: Tensor<B, D>,
    coefficient: f64,
) -> Tensor<B, D> {
    match coefficient < 1.0 {
        true => {
            let [first, second] = factors(coefficient);
            let grad = match first < 1.0 {
                true => widened(grad) * first,
                false => widened(grad),
            };
            grad * second
        }
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
    if grad.shape().num_elements() == 0 {
        return grad;
    }
    let (weight, grad) = (widened(weight), widened(grad));
    let of_weight = unit_scales(&weight);
    let allowed = unit_norms(weight * of_weight.clone()) / of_weight;
    let allowed = allowed.clamp_min(config.eps) * config.clip_factor;
    // A gradient that would have to be scaled up has the least norm that counts.
    let scale = unit_scales(&grad).clamp_max(1.0);
    let grad = grad * scale.clone();
    let least = scale.clone() * AdaptiveRule::MIN_GRAD_NORM;
    let norms = unit_norms(grad.clone()).max_pair(least);
    grad * (allowed / norms).min_pair(scale.recip())
}

fn unit_norms<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    AdaptiveRule::dims_of_unit(D)
        .fold(tensor.square(), |sums, dim| sums.sum_dim(dim))
        .sqrt()
}

fn unit_scales<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> Tensor<B, D> {
    let dims = || AdaptiveRule::dims_of_unit(D);
    let most = dims().fold(tensor.clone(), |most, dim| most.max_dim(dim));
    let least = dims().fold(tensor.clone(), |least, dim| least.min_dim(dim));
    scale(most.max_pair(-least))
}

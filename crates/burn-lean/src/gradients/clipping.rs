//! Clipping by norms of several gradients or of units.

use burn::Tensor;
use burn::config::Config;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::clipping::{AdaptiveRule, AutoClipRule, GlobalNormRule, ZClipRule};

use crate::wide::widened;

/// A rule that clips the gradients of a model by their norms, named as in its paper.
///
/// Burn's own [`GradientClipping`](burn::grad_clipping::GradientClipping) clips each gradient by
/// itself, and runs after this one if both are set.
#[derive(Config, Debug, Copy, PartialEq)]
#[non_exhaustive]
pub enum NormClipping {
    /// By the norm of all gradients together, as PyTorch's `clip_grad_norm_` does: every gradient
    /// is multiplied by `max_norm / (norm + 1e-6)` if that is less than one. It is exact, and so
    /// needs [two backward passes](crate::ReleaseOptimizer::two_passes): the norm is known only
    /// after every gradient.
    GlobalNorm {
        /// The largest norm after clipping.
        max_norm: f64,
    },
    /// By the distance of the norm of all gradients from those of earlier steps. Needs two backward
    /// passes.
    ZClip(ZClipConfig),
    /// Unit by unit, by the norm of the unit's weights. In one pass.
    Adaptive(AdaptiveClippingConfig),
    /// Each gradient by a quantile of its norms so far. In one pass.
    AutoClip(AutoClipConfig),
}

/// ZClip: adaptive spike mitigation for pre-training
/// ([arXiv 2504.02507](https://arxiv.org/abs/2504.02507)).
///
/// Keeps a moving mean and variance of the global norm `g`. If `z = (g - mean) / std` is above the
/// threshold, the gradients are scaled to the norm `mean + z_threshold² / z · std`, which enters
/// the moving averages in place of `g`. Steps of the warm-up only collect their norms.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct ZClipConfig {
    /// Decay rate of the moving averages.
    #[config(default = 0.97)]
    pub alpha: f64,
    /// Number of standard deviations above the mean from which a norm is a spike.
    #[config(default = 2.5)]
    pub z_threshold: f64,
    /// Number of warm-up steps.
    #[config(default = 25)]
    pub warm_up: usize,
}

/// Adaptive gradient clipping, AGC ([arXiv 2102.06171](https://arxiv.org/abs/2102.06171)).
///
/// The gradient of a unit is scaled down if its norm is more than `clip_factor` times the norm of
/// the unit's weights. A unit has the weights of one output: a column of a matrix, since Burn's
/// `Linear` is `[in, out]`; a slice along the first dimension of a tensor of higher rank, such as
/// that of a convolution (`[out, in, ..]`); a vector is one unit. The paper leaves out the last
/// layer; here it is clipped like the others.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct AdaptiveClippingConfig {
    /// The largest ratio of the gradient's norm to that of the weights.
    #[config(default = 0.01)]
    pub clip_factor: f64,
    /// Lower bound of the norm of weights, so that weights of zero can learn.
    #[config(default = 1e-3)]
    pub eps: f64,
}

/// AutoClip ([arXiv 2007.14469](https://arxiv.org/abs/2007.14469)), for each tensor by itself.
///
/// A gradient is scaled to the given percentile of the norms of this tensor's gradients so far,
/// including this one. Each norm is read when its gradient is complete: on a GPU this waits for the
/// device.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct AutoClipConfig {
    /// Percentile, from 0 to 100.
    #[config(default = 10.0)]
    pub percentile: f64,
    /// Number of recent norms kept for each tensor.
    #[config(default = 10_000)]
    pub history: usize,
}

impl NormClipping {
    /// Whether the rule needs all gradients before the first step.
    pub fn needs_two_passes(&self) -> bool {
        matches!(self, Self::GlobalNorm { .. } | Self::ZClip(_))
    }

    /// The first setting that is out of range.
    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        match *self {
            Self::GlobalNorm { max_norm } => GlobalNormRule { max_norm }.out_of_range(),
            Self::ZClip(config) => config.rule().out_of_range(),
            Self::Adaptive(config) => config.rule().out_of_range(),
            Self::AutoClip(config) => config.rule().out_of_range(),
        }
    }
}

impl ZClipConfig {
    pub(super) fn rule(&self) -> ZClipRule {
        ZClipRule {
            alpha: self.alpha,
            z_threshold: self.z_threshold,
            warm_up: self.warm_up,
        }
    }
}

impl AdaptiveClippingConfig {
    fn rule(&self) -> AdaptiveRule {
        AdaptiveRule {
            clip_factor: self.clip_factor,
            eps: self.eps,
        }
    }
}

impl AutoClipConfig {
    pub(super) fn rule(&self) -> AutoClipRule {
        AutoClipRule {
            percentile: self.percentile,
            history: self.history,
        }
    }
}

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

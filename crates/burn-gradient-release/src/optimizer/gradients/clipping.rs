//! Clipping by norms that are not those of one gradient alone.

use burn::{
    config::Config,
    tensor::{Tensor, backend::Backend},
};
use burn_lean_arithmetic::{
    OutOfRange,
    clipping::{AdaptiveRule, AutoClipRule, GlobalNormRule, ZClipRule},
};

/// How the gradients of a model are clipped by their norms, each under the name of its paper.
///
/// Burn's own [`GradientClipping`](burn::grad_clipping::GradientClipping) clips each gradient by
/// itself, and comes after this one where both are asked for.
#[derive(Config, Debug, Copy, PartialEq)]
#[non_exhaustive]
pub enum NormClipping {
    /// By the norm of all gradients together, as PyTorch's `clip_grad_norm_` does: every gradient
    /// is multiplied by `max_norm / (norm + 1e-6)` where that is less than one. Exact, and so in
    /// [two backward passes](crate::TwoPasses): the norm is known only once every gradient was
    /// there.
    GlobalNorm {
        /// The largest norm that is stepped with.
        max_norm: f64,
    },
    /// By how far the norm of all gradients is from those of earlier steps. In two backward passes.
    ZClip(ZClipConfig),
    /// Unit by unit, by the norm of the unit's weights. In one pass.
    Adaptive(AdaptiveClippingConfig),
    /// Each gradient by a quantile of the norms it has had. In one pass.
    AutoClip(AutoClipConfig),
}

/// ZClip: adaptive spike mitigation for pre-training ([arXiv
/// 2504.02507](https://arxiv.org/abs/2504.02507)).
///
/// Of the global norm `g` a moving mean and variance are kept. With `z = (g - mean) / std` above
/// the threshold, the gradients are scaled to the norm `mean + z_threshold² / z · std`, and the
/// moving averages are told that norm in place of `g`. Steps of the warm-up only gather their
/// norms.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct ZClipConfig {
    /// Share of the past in the moving averages.
    #[config(default = 0.97)]
    pub alpha: f64,
    /// Number of standard deviations above which a norm is a spike.
    #[config(default = 2.5)]
    pub z_threshold: f64,
    /// Steps before the first is scaled.
    #[config(default = 25)]
    pub warm_up: usize,
}

/// Adaptive gradient clipping, AGC ([arXiv 2102.06171](https://arxiv.org/abs/2102.06171)).
///
/// The gradient of a unit is scaled down where its norm is more than `clip_factor` times the norm
/// of the unit's weights. A unit is what makes one output: a column of a matrix, as Burn's `Linear`
/// is `[in, out]`; a slice along the first dimension of a tensor of more dimensions, as of a
/// convolution (`[out, in, ..]`); a vector is one unit. The paper leaves out the last layer: use a
/// group for it.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct AdaptiveClippingConfig {
    /// The largest ratio of the norms of gradient and weights.
    #[config(default = 0.01)]
    pub clip_factor: f64,
    /// The least that the norm of weights counts, so that weights of zero can learn.
    #[config(default = 1e-3)]
    pub eps: f64,
}

/// AutoClip ([arXiv 2007.14469](https://arxiv.org/abs/2007.14469)), for each tensor by itself.
///
/// A gradient is scaled to the given percentile of the norms that this tensor's gradient has had,
/// this one included. It reads each norm when the gradient comes: on a GPU that waits for the
/// device.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct AutoClipConfig {
    /// The percentile, from 0 to 100.
    #[config(default = 10.0)]
    pub percentile: f64,
    /// Number of recent norms kept for each tensor.
    #[config(default = 10_000)]
    pub history: usize,
}

impl NormClipping {
    /// Whether all gradients have to be seen before the first is stepped with.
    pub fn needs_two_passes(&self) -> bool {
        matches!(self, Self::GlobalNorm { .. } | Self::ZClip(_))
    }

    /// The first setting that no clipping can be done with, if there is one.
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

/// Scales the gradient of each unit to the norm that the unit's weights allow.
pub(super) fn clip_units<B: Backend, const D: usize>(
    config: &AdaptiveClippingConfig,
    weight: Tensor<B, D>,
    grad: Tensor<B, D>,
) -> Tensor<B, D> {
    let allowed = unit_norms(weight).clamp_min(config.eps) * config.clip_factor;
    let norms = unit_norms(grad.clone()).clamp_min(AdaptiveRule::MIN_GRAD_NORM);
    grad * (allowed / norms).clamp_max(1.0)
}

fn unit_norms<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    AdaptiveRule::dims_of_unit(D)
        .fold(tensor.square(), |sums, dim| sums.sum_dim(dim))
        .sqrt()
}

//! StableAdamW.

use burn::{config::Config, grad_clipping::GradientClippingConfig};
use lean_arithmetic::optim::rules;

use super::{
    EightBitMoments,
    adaptive::{Adaptive, AdaptiveState},
};
use crate::settings::Settings;

/// Configuration of [`StableAdamW`].
#[derive(Config, Debug)]
pub struct StableAdamWConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the second moment.
    #[config(default = 0.99)]
    pub beta_2: f64,
    /// Added to the root of the second moment.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 1e-2)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl StableAdamWConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> StableAdamW {
        let rule = rules::StableAdamW {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        };
        Adaptive {
            rule: rule.checked(),
            amsgrad: false,
            settings: Settings::clipping(self.grad_clipping.clone()),
        }
    }
}

/// AdamW whose learning rate shrinks, parameter by parameter, if gradients are larger than the
/// second moment suggests. With gradient release this replaces clipping by the global norm.
///
/// Wortsman et al., "Stable and low-precision training for large-scale vision-language models"
/// (2023),
/// <https://arxiv.org/abs/2304.13013>; as optimi has it, with its defaults.
pub type StableAdamW = Adaptive<rules::StableAdamW>;

/// State of [`StableAdamW`].
pub type StableAdamWState<B> = AdaptiveState<B>;

impl EightBitMoments for StableAdamW {}

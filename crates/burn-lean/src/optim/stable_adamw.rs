//! StableAdamW.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::ModuleOptimizer;
use lean_arithmetic::optim::rules;

use super::adaptive::{Adaptive, AdaptiveState};
use super::settings::Settings;
use super::{EightBitMoments, Lean};

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

    /// The optimizer for all parameters of a module.
    pub fn init(&self) -> ModuleOptimizer {
        self.build().init()
    }
}

/// AdamW whose learning rate shrinks, parameter by parameter, if gradients are larger than the
/// second moment suggests. With gradient release this replaces clipping by the global norm.
///
/// Wortsman et al., "Stable and low-precision training for large-scale vision-language models"
/// (2023), <https://arxiv.org/abs/2304.13013>; as optimi has it, with its defaults.
///
/// ```
/// use burn_lean::WithGradientRelease;
/// use burn_lean::optim::{Lean, StableAdamWConfig};
///
/// let optim = StableAdamWConfig::new().init().with_gradient_release();
/// # let _ = optim;
/// ```
pub type StableAdamW = Adaptive<rules::StableAdamW>;

/// State of [`StableAdamW`].
pub type StableAdamWState<const D: usize> = AdaptiveState<D>;

impl EightBitMoments for StableAdamW {}

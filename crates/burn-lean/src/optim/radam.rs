//! RAdam.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::ModuleOptimizer;
use lean_arithmetic::optim::rules;

use super::Lean;
use super::adaptive::{Adaptive, AdaptiveState};
use super::settings::Settings;

/// Configuration of [`RAdam`].
#[derive(Config, Debug)]
pub struct RAdamConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the second moment.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Added to the root of the second moment.
    #[config(default = 1e-8)]
    pub epsilon: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl RAdamConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> RAdam {
        let rule = rules::RAdam {
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

/// RAdam: Adam that needs no warm-up, since its first steps, whose second moment says little, go
/// without it.
///
/// Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020),
/// <https://arxiv.org/abs/1908.03265>; as PyTorch has it with `decoupled_weight_decay=True`.
pub type RAdam = Adaptive<rules::RAdam>;

/// State of [`RAdam`].
pub type RAdamState<const D: usize> = AdaptiveState<D>;

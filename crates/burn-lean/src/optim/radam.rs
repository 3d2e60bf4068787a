//! RAdam.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::rules;

use super::Lean;
use super::adam::AdamState;
use super::adaptive::{self, AdaptiveMomentumState};
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
        RAdam {
            radam: rules::RAdam {
                beta_1: self.beta_1,
                beta_2: self.beta_2,
                epsilon: self.epsilon,
                weight_decay: self.weight_decay,
            }
            .checked(),
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
#[derive(Clone, Debug)]
pub struct RAdam {
    radam: rules::RAdam,
    settings: Settings,
}

impl Lean for RAdam {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("RAdam: beta_1", self.radam.beta_1),
            ("RAdam: beta_2", self.radam.beta_2),
        ]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

/// State of [`RAdam`].
pub type RAdamState<const D: usize> = AdamState<D>;

impl Optimizer for RAdam {
    type State<const D: usize> = RAdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<RAdamState<D>>,
    ) -> (Tensor<D>, Option<RAdamState<D>>) {
        let momentum = state.map(|state| state.momentum);
        let settings = &self.settings;
        let time = settings
            .micro_batch
            .time(AdaptiveMomentumState::steps(&momentum));
        let rule = self.radam.rule(lr, time, settings.micro_batch);
        let (tensor, momentum) =
            adaptive::step(settings, rule, time, false, tensor, grad, momentum);
        (tensor, Some(RAdamState { momentum }))
    }

    fn to_device<const D: usize>(state: RAdamState<D>, device: &Device) -> RAdamState<D> {
        let momentum = state.momentum.on_device(device);
        RAdamState { momentum }
    }
}

//! Lion.

use burn::{
    config::Config,
    grad_clipping::GradientClippingConfig,
    optim::{LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{Kind, rules, rules::Factors};

use super::{EightBitMoments, Lean};
use crate::{LeanBackend, moment::Moment, settings::Settings};

/// Configuration of [`Lion`].
#[derive(Config, Debug)]
pub struct LionConfig {
    /// Weight of the old momentum in the step.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the momentum.
    #[config(default = 0.99)]
    pub beta_2: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl LionConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> Lion {
        Lion {
            lion: rules::Lion {
                factors: Factors::new(self.beta_1, self.beta_2),
                weight_decay: self.weight_decay,
            }
            .checked(),
            settings: Settings::clipping(self.grad_clipping.clone()),
        }
    }
}

/// Lion: one momentum, and steps of one length by its sign.
///
/// Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023),
/// <https://arxiv.org/abs/2302.06675>. The learning rate is three to ten times smaller than
/// AdamW's, and the weight decay larger by as much.
#[derive(Clone, Debug)]
pub struct Lion {
    lion: rules::Lion,
    settings: Settings,
}

impl Lean for Lion {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![("Lion: beta_2", self.lion.factors.beta_2)]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for Lion {}

/// State of [`Lion`].
#[derive(Record, Clone, Debug)]
pub struct LionState<B: Backend> {
    /// Moving average of gradients.
    pub momentum: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for Lion {
    type State<const D: usize> = LionState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<LionState<B>>,
    ) -> (Tensor<B, D>, Option<LionState<B>>) {
        let rule = self.lion.rule(lr);
        let states = state.map(|state| [state.momentum]);
        let (tensor, [momentum]) =
            self.settings
                .step(&rule, [Kind::Signed], None, tensor, grad, states);
        (tensor, Some(LionState { momentum }))
    }

    fn to_device<const D: usize>(state: LionState<B>, device: &B::Device) -> LionState<B> {
        let momentum = state.momentum.on_device(device);
        LionState { momentum }
    }
}

//! AdaGrad.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{AdaGradConfig, LearningRate, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{Kind, configuration, rules, rules::CoupledDecay};
use serde::Deserialize;

use super::{InOnePass, Lean, coupled_decay};
use crate::{LeanBackend, moment::Moment, settings::Settings};

/// Burn's [`AdaGrad`](burn::optim::AdaGrad) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct AdaGrad {
    lr_decay: f64,
    epsilon: f32,
    weight_decay: CoupledDecay,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    lr_decay: f64,
    epsilon: f32,
    weight_decay: Option<WeightDecayConfig>,
    grad_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for AdaGradConfig {
    type Optimizer = AdaGrad;

    fn in_one_pass(&self) -> AdaGrad {
        let config: Configuration = configuration(self);
        let weight_decay = coupled_decay(config.weight_decay);
        rules::AdaGrad::expect_in_range(config.lr_decay, config.epsilon, weight_decay);
        AdaGrad {
            lr_decay: config.lr_decay,
            epsilon: config.epsilon,
            weight_decay,
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
}

impl Lean for AdaGrad {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![("AdaGrad: the share of the sum of squares that is kept", 1.0)]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

/// State of [`AdaGrad`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct AdaGradState<B: Backend> {
    /// The sum of squares and the number of steps.
    pub lr_decay: LrDecayState<B>,
}

/// Sum of [`AdaGradState`].
#[derive(Record, Clone, Debug)]
pub struct LrDecayState<B: Backend> {
    /// Number of steps taken.
    pub time: usize,
    /// Sum of squared gradients.
    pub sum: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for AdaGrad {
    type State<const D: usize> = AdaGradState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdaGradState<B>>,
    ) -> (Tensor<B, D>, Option<AdaGradState<B>>) {
        let state = state.map(|state| state.lr_decay);
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let decay = self.weight_decay;
        let rule = rules::AdaGrad::new(lr, self.lr_decay, self.epsilon, decay, time);
        let states = state.map(|state| [state.sum]);
        let (tensor, [sum]) =
            self.settings
                .step(&rule, [Kind::Positive], None, tensor, grad, states);
        let lr_decay = LrDecayState { time, sum };
        (tensor, Some(AdaGradState { lr_decay }))
    }

    fn to_device<const D: usize>(state: AdaGradState<B>, device: &B::Device) -> AdaGradState<B> {
        let LrDecayState { time, sum } = state.lr_decay;
        let sum = sum.on_device(device);
        AdaGradState {
            lr_decay: LrDecayState { time, sum },
        }
    }
}

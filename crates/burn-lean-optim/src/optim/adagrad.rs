//! AdaGrad.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{AdaGradConfig, LearningRate, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use serde::Deserialize;

use super::{InOnePass, Lean, configuration, decay::CoupledDecay};
use crate::{
    LeanBackend, Number, Rule,
    moment::Moment,
    pass::{Kind, Settings},
};

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
        AdaGrad {
            lr_decay: config.lr_decay,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay.into(),
            settings: Settings::clipping(config.grad_clipping),
        }
    }
}

impl Lean for AdaGrad {
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
    /// How many steps there were.
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
        let rule = Adapted {
            lr: lr / (1.0 + (time as f64 - 1.0) * self.lr_decay),
            epsilon: self.epsilon.into(),
            decay: self.weight_decay,
        };
        let states = state.map(|state| [state.sum]);
        let (tensor, [sum]) = self
            .settings
            .step(&rule, [Kind::Positive], tensor, grad, states);
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

#[derive(Clone, Copy)]
struct Adapted {
    lr: f64,
    epsilon: f64,
    decay: CoupledDecay,
}

impl Adapted {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, sum: T) -> (T, [T; 1]) {
        let update = grad / sum.clone().sqrt().add_scalar(self.epsilon);
        (weight - update.mul_scalar(self.lr), [sum])
    }
}

impl Rule<1> for Adapted {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 1]) {
        let grad = self.decay.gradient(&weight, grad);
        let sum = grad.clone().square();
        self.step(weight, grad, sum)
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, [sum]: [T; 1]) -> (T, [T; 1]) {
        let grad = self.decay.gradient(&weight, grad);
        let sum = sum + grad.clone().square();
        self.step(weight, grad, sum)
    }
}

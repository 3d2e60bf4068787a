//! Adam.

use burn::{
    optim::{AdamConfig, LearningRate, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use serde::Deserialize;

use super::{
    InOnePass, Lean,
    adaptive::{AdaptiveMomentumState, Averages, Update},
    configuration,
    decay::CoupledDecay,
};
use crate::{EightBitMoments, LeanBackend, Number, pass::Settings};

/// Burn's [`Adam`](burn::optim::Adam) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Adam {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: CoupledDecay,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: Option<WeightDecayConfig>,
    grad_clipping: Option<burn::grad_clipping::GradientClippingConfig>,
}

impl InOnePass for AdamConfig {
    type Optimizer = Adam;

    fn in_one_pass(&self) -> Adam {
        let config: Configuration = configuration(self);
        Adam {
            beta_1: config.beta_1,
            beta_2: config.beta_2,
            epsilon: config.epsilon,
            amsgrad: config.amsgrad,
            weight_decay: config.weight_decay.into(),
            settings: Settings::clipping(config.grad_clipping),
        }
    }
}

impl Lean for Adam {
    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for Adam {}

/// State of [`Adam`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct AdamState<B: Backend> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for Adam {
    type State<const D: usize> = AdamState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdamState<B>>,
    ) -> (Tensor<B, D>, Option<AdamState<B>>) {
        let momentum = state.map(|state| state.momentum);
        let (averages, [correction_1, correction_2]) = Averages::as_burn(
            self.beta_1,
            self.beta_2,
            self.settings.part,
            momentum.as_ref(),
        );
        let root = correction_2.sqrt();
        let update = AdamUpdate {
            lr,
            decay: self.weight_decay.in_part(self.settings.part),
            factor: (root / correction_1).into(),
            epsilon: (self.epsilon * root).into(),
        };
        let (tensor, momentum) =
            averages.step(&self.settings, update, self.amsgrad, tensor, grad, momentum);
        (tensor, Some(AdamState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamState<B>, device: &B::Device) -> AdamState<B> {
        let momentum = state.momentum.on_device(device);
        AdamState { momentum }
    }
}

#[derive(Clone, Copy)]
struct AdamUpdate {
    lr: f64,
    decay: CoupledDecay,
    factor: f64,
    epsilon: f64,
}

impl Update for AdamUpdate {
    #[inline(always)]
    fn gradient<T: Number>(&self, weight: &T, grad: T) -> T {
        self.decay.gradient(weight, grad)
    }

    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let update = moment_1.mul_scalar(self.factor) / moment_2.sqrt().add_scalar(self.epsilon);
        weight - update.mul_scalar(self.lr)
    }
}

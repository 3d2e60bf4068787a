//! Adam.

use burn::{
    optim::{AdamConfig, LearningRate, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{configuration, rules};
use serde::Deserialize;

use super::{
    EightBitMoments, InOnePass, Lean, adaptive, adaptive::AdaptiveMomentumState, coupled_decay,
};
use crate::{LeanBackend, settings::Settings};

/// Burn's [`Adam`](burn::optim::Adam) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Adam {
    adam: rules::Adam,
    amsgrad: bool,
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
            adam: rules::Adam {
                beta_1: config.beta_1,
                beta_2: config.beta_2,
                epsilon: config.epsilon,
                decay: coupled_decay(config.weight_decay),
            }
            .checked(),
            amsgrad: config.amsgrad,
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
}

impl Lean for Adam {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("Adam: beta_1", self.adam.beta_1.into()),
            ("Adam: beta_2", self.adam.beta_2.into()),
        ]
    }

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
        let settings = &self.settings;
        let time = settings
            .micro_batch
            .time(AdaptiveMomentumState::steps(&momentum));
        let rule = self.adam.rule(lr, time, settings.micro_batch);
        let (tensor, momentum) =
            adaptive::step(settings, rule, time, self.amsgrad, tensor, grad, momentum);
        (tensor, Some(AdamState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamState<B>, device: &B::Device) -> AdamState<B> {
        let momentum = state.momentum.on_device(device);
        AdamState { momentum }
    }
}

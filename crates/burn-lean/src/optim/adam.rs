//! Adam.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, LearningRate, Optimizer};
use burn::serde::Deserialize;
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::{configuration, rules};

use super::adaptive::{self, AdaptiveMomentumState};
use super::record::record_state;
use super::settings::Settings;
use super::{EightBitMoments, InOnePass, Lean, coupled_decay};

/// Burn's [`Adam`](burn::optim::Adam) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Adam {
    adam: rules::Adam,
    amsgrad: bool,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(crate = "burn::serde", deny_unknown_fields)]
struct Configuration {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: Option<WeightDecayConfig>,
    grad_clipping: Option<GradientClippingConfig>,
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
#[derive(Clone, Debug)]
pub struct AdamState<const D: usize> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<D>,
}

record_state!(AdamState { momentum });

impl Optimizer for Adam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamState<D>>,
    ) -> (Tensor<D>, Option<AdamState<D>>) {
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

    fn to_device<const D: usize>(state: AdamState<D>, device: &Device) -> AdamState<D> {
        let momentum = state.momentum.on_device(device);
        AdamState { momentum }
    }
}

//! Lion.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, LionConfig, Optimizer};
use burn::serde::Deserialize;
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::rules::Factors;
use lean_arithmetic::optim::{Kind, configuration, rules};

use super::moment::Moment;
use super::record::{Field, record_state};
use super::settings::Settings;
use super::{EightBitMoments, InOnePass, Lean};

/// Burn's [`Lion`](burn::optim::Lion) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Lion {
    lion: rules::Lion,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(crate = "burn::serde", deny_unknown_fields)]
struct Configuration {
    beta_1: f32,
    beta_2: f32,
    weight_decay: f32,
    grad_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for LionConfig {
    type Optimizer = Lion;

    fn in_one_pass(&self) -> Lion {
        let config: Configuration = configuration(self);
        Lion {
            lion: rules::Lion {
                factors: Factors::as_burn(config.beta_1, config.beta_2),
                weight_decay: config.weight_decay.into(),
            }
            .checked(),
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
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

/// State of [`Lion`], saved as Burn saves it.
#[derive(Clone, Debug)]
pub struct LionState<const D: usize> {
    /// Moving average of gradients.
    pub momentum: Moment<D>,
}

record_state!(LionState { momentum });

impl Optimizer for Lion {
    type State<const D: usize> = LionState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        if self.settings.is_only_asked(&tensor, true) {
            return (tensor, None);
        }
        let rule = self.lion.rule(lr);
        let states = state.map(|state| [state.momentum]);
        let kinds = [Kind::Signed];
        let (tensor, [momentum]) = self.settings.step(&rule, kinds, None, tensor, grad, states);
        (tensor, Some(LionState { momentum }))
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        state.on_device(device)
    }
}

//! AdamW.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{AdamWConfig, LearningRate, Optimizer};
use burn::serde::Deserialize;
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::{configuration, rules};

use super::adam::AdamState;
use super::adaptive::{self, AdaptiveMomentumState};
use super::settings::Settings;
use super::{EightBitMoments, InOnePass, Lean};

/// Burn's [`AdamW`](burn::optim::AdamW) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct AdamW {
    adamw: rules::AdamW,
    amsgrad: bool,
    settings: Settings,
}

impl AdamW {
    /// Decays by `weight_decay * lr / max_lr` in place of `weight_decay * lr`: weight decay that
    /// does not depend on the learning rate, but for its schedule. `max_lr` is the highest rate of
    /// the schedule.
    ///
    /// The option `decouple_lr` of optimi, after Loshchilov and Hutter (2019), section 4.
    ///
    /// # Panics
    ///
    /// If `max_lr` is not above zero, or not finite.
    pub fn with_decoupled_lr(mut self, max_lr: LearningRate) -> Self {
        assert!(
            max_lr > 0.0 && max_lr.is_finite(),
            "AdamW: max_lr is {max_lr}, which is out of range: weight decay is divided by it"
        );
        self.adamw.max_lr = Some(max_lr);
        self.settings.is_burns = false;
        self
    }
}

#[derive(Deserialize)]
#[serde(crate = "burn::serde", deny_unknown_fields)]
struct Configuration {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    weight_decay: f32,
    cautious_weight_decay: bool,
    amsgrad: bool,
    grad_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for AdamWConfig {
    type Optimizer = AdamW;

    fn in_one_pass(&self) -> AdamW {
        let config: Configuration = configuration(self);
        AdamW {
            adamw: rules::AdamW {
                beta_1: config.beta_1,
                beta_2: config.beta_2,
                epsilon: config.epsilon,
                weight_decay: config.weight_decay,
                cautious: config.cautious_weight_decay,
                max_lr: None,
            }
            .checked(),
            amsgrad: config.amsgrad,
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
}

impl Lean for AdamW {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("AdamW: beta_1", self.adamw.beta_1.into()),
            ("AdamW: beta_2", self.adamw.beta_2.into()),
        ]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for AdamW {}

/// State of [`AdamW`], saved as Burn saves it.
pub type AdamWState<const D: usize> = AdamState<D>;

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let momentum = state.map(|state| state.momentum);
        let settings = &self.settings;
        let time = settings
            .micro_batch
            .time(AdaptiveMomentumState::steps(&momentum));
        let rule = self.adamw.rule(lr, time, settings.micro_batch);
        let (tensor, momentum) =
            adaptive::step(settings, rule, time, self.amsgrad, tensor, grad, momentum);
        (tensor, Some(AdamWState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        let momentum = state.momentum.on_device(device);
        AdamWState { momentum }
    }
}

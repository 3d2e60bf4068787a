//! Adan.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{AdanConfig, LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{Kind, configuration, rules};
use serde::Deserialize;

use super::{InOnePass, Lean};
use crate::{LeanBackend, moment::Moment, settings::Settings};

/// Burn's [`Adan`](burn::optim::Adan) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Adan {
    adan: rules::Adan,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    beta_1: f32,
    beta_2: f32,
    beta_3: f32,
    epsilon: f32,
    weight_decay: f32,
    no_prox: bool,
    grad_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for AdanConfig {
    type Optimizer = Adan;

    fn in_one_pass(&self) -> Adan {
        let config: Configuration = configuration(self);
        Adan {
            adan: rules::Adan {
                beta_1: config.beta_1,
                beta_2: config.beta_2,
                beta_3: config.beta_3,
                epsilon: config.epsilon,
                weight_decay: config.weight_decay,
                no_prox: config.no_prox,
            }
            .checked(),
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
}

impl Lean for Adan {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("Adan: beta_1", self.adan.beta_1.into()),
            ("Adan: beta_2", self.adan.beta_2.into()),
            ("Adan: beta_3", self.adan.beta_3.into()),
        ]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

/// State of [`Adan`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct AdanState<B: Backend> {
    /// The moments.
    pub momentum: AdaptiveNesterovMomentumState<B>,
}

/// Moments of [`AdanState`].
#[derive(Record, Clone, Debug)]
pub struct AdaptiveNesterovMomentumState<B: Backend> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of gradients.
    pub exp_avg: Moment<B>,
    /// Moving average of squares.
    pub exp_avg_sq: Moment<B>,
    /// Moving average of differences between gradients.
    pub exp_avg_diff: Moment<B>,
    /// The last gradient, negated.
    pub neg_pre_grad: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for Adan {
    type State<const D: usize> = AdanState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdanState<B>>,
    ) -> (Tensor<B, D>, Option<AdanState<B>>) {
        let state = state.map(|state| state.momentum);
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = self.adan.rule(lr, time);
        let states = state.map(|state| {
            [
                state.exp_avg,
                state.exp_avg_sq,
                state.exp_avg_diff,
                state.neg_pre_grad,
            ]
        });
        let kinds = [Kind::Signed, Kind::Positive, Kind::Signed, Kind::Signed];
        let (tensor, states) = self.settings.step(&rule, kinds, None, tensor, grad, states);
        let [exp_avg, exp_avg_sq, exp_avg_diff, neg_pre_grad] = states;
        let momentum = AdaptiveNesterovMomentumState {
            time,
            exp_avg,
            exp_avg_sq,
            exp_avg_diff,
            neg_pre_grad,
        };
        (tensor, Some(AdanState { momentum }))
    }

    fn to_device<const D: usize>(state: AdanState<B>, device: &B::Device) -> AdanState<B> {
        let state = state.momentum;
        let momentum = AdaptiveNesterovMomentumState {
            time: state.time,
            exp_avg: state.exp_avg.on_device(device),
            exp_avg_sq: state.exp_avg_sq.on_device(device),
            exp_avg_diff: state.exp_avg_diff.on_device(device),
            neg_pre_grad: state.neg_pre_grad.on_device(device),
        };
        AdanState { momentum }
    }
}

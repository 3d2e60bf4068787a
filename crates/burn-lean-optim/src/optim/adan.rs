//! Adan.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{AdanConfig, LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use serde::Deserialize;

use super::{InOnePass, Lean, configuration};
use crate::{
    LeanBackend, Number, Rule,
    moment::Moment,
    pass::{Kind, Settings},
};

/// Burn's [`Adan`](burn::optim::Adan) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct Adan {
    beta_1: f32,
    beta_2: f32,
    beta_3: f32,
    epsilon: f32,
    weight_decay: f32,
    no_prox: bool,
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
            beta_1: config.beta_1,
            beta_2: config.beta_2,
            beta_3: config.beta_3,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay,
            no_prox: config.no_prox,
            settings: Settings::clipping(config.grad_clipping),
        }
    }
}

impl Lean for Adan {
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
    /// How many steps there were.
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
        let correction = |beta: f32| 1.0 - beta.powi(time as i32);
        let rule = Nesterov {
            lr,
            decay_rate: lr * f64::from(self.weight_decay),
            no_prox: self.no_prox,
            beta_1: self.beta_1.into(),
            rest_1: (1.0 - self.beta_1).into(),
            correction_1: correction(self.beta_1).into(),
            beta_2: self.beta_2.into(),
            rest_2: (1.0 - self.beta_2).into(),
            correction_2: correction(self.beta_2).into(),
            beta_3: self.beta_3.into(),
            rest_3: (1.0 - self.beta_3).into(),
            root_3: correction(self.beta_3).sqrt().into(),
            epsilon: self.epsilon.into(),
        };
        let states = state.map(|state| {
            [
                state.exp_avg,
                state.exp_avg_sq,
                state.exp_avg_diff,
                state.neg_pre_grad,
            ]
        });
        let kinds = [Kind::Signed, Kind::Positive, Kind::Signed, Kind::Signed];
        let (tensor, states) = self.settings.step(&rule, kinds, tensor, grad, states);
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

#[derive(Clone, Copy)]
struct Nesterov {
    lr: f64,
    decay_rate: f64,
    no_prox: bool,
    beta_1: f64,
    rest_1: f64,
    correction_1: f64,
    beta_2: f64,
    rest_2: f64,
    correction_2: f64,
    beta_3: f64,
    rest_3: f64,
    root_3: f64,
    epsilon: f64,
}

impl Nesterov {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, average: T, square: T, difference: T) -> T {
        let root = square
            .sqrt()
            .div_scalar(self.root_3)
            .add_scalar(self.epsilon);
        let ahead = difference
            .mul_scalar(self.beta_2)
            .div_scalar(self.correction_2);
        let update = average.div_scalar(self.correction_1) / root.clone() + ahead / root;
        let step = update.mul_scalar(self.lr);
        if self.decay_rate == 0.0 {
            weight - step
        } else if self.no_prox {
            weight.mul_scalar(1.0 - self.decay_rate) - step
        } else {
            (weight - step).div_scalar(1.0 + self.decay_rate)
        }
    }
}

impl Rule<4> for Nesterov {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 4]) {
        let average = grad.clone().mul_scalar(self.rest_1);
        let square = grad.clone().square().mul_scalar(self.rest_3);
        let difference = grad.zeros_like();
        let weight = self.weight(weight, average.clone(), square.clone(), difference.clone());
        (weight, [average, square, difference, grad.mul_scalar(-1.0)])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; 4]) -> (T, [T; 4]) {
        let [average, square, difference, last] = state;
        let change = last + grad.clone();
        let ahead = (change.clone().mul_scalar(self.beta_2) + grad.clone()).square();
        let average = average.mul_scalar(self.beta_1) + grad.clone().mul_scalar(self.rest_1);
        let difference = difference.mul_scalar(self.beta_2) + change.mul_scalar(self.rest_2);
        let square = square.mul_scalar(self.beta_3) + ahead.mul_scalar(self.rest_3);
        let weight = self.weight(weight, average.clone(), square.clone(), difference.clone());
        (weight, [average, square, difference, grad.mul_scalar(-1.0)])
    }
}

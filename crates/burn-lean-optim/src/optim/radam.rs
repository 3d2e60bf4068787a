//! RAdam.

use burn::{
    config::Config,
    grad_clipping::GradientClippingConfig,
    optim::{LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};

use super::{
    Lean,
    adaptive::{AdaptiveMomentumState, Averages, Factors, Update},
};
use crate::{LeanBackend, Number, pass::Settings};

/// Configuration of [`RAdam`].
#[derive(Config, Debug)]
pub struct RAdamConfig {
    /// How much of the first moment is kept.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// How much of the second moment is kept.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Added to the root of the second moment.
    #[config(default = 1e-8)]
    pub epsilon: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl RAdamConfig {
    /// Builds the optimizer.
    pub fn build(&self) -> RAdam {
        RAdam {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            settings: Settings::clipping(self.grad_clipping.clone()),
        }
    }
}

/// RAdam: Adam that needs no warm-up, since its first steps, whose second moment says little, go without it.
///
/// Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020),
/// <https://arxiv.org/abs/1908.03265>; as PyTorch has it with `decoupled_weight_decay=True`.
#[derive(Clone, Debug)]
pub struct RAdam {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    weight_decay: f64,
    settings: Settings,
}

impl Lean for RAdam {
    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

/// State of [`RAdam`].
#[derive(Record, Clone, Debug)]
pub struct RAdamState<B: Backend> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for RAdam {
    type State<const D: usize> = RAdamState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<RAdamState<B>>,
    ) -> (Tensor<B, D>, Option<RAdamState<B>>) {
        let momentum = state.map(|state| state.momentum);
        let part = self.settings.part;
        let time = part.time(momentum.as_ref().map_or(0, |momentum| momentum.time));
        let factors = Factors {
            beta_1: part.kept(self.beta_1),
            beta_2: part.kept(self.beta_2),
            ..Factors::new(self.beta_1, self.beta_2)
        };
        let update = Rectified {
            step: lr / (1.0 - self.beta_1.powi(time as i32)),
            decay: 1.0 - lr * self.weight_decay,
            rectification: rectification(self.beta_2, time),
            epsilon: self.epsilon,
        };
        let averages = Averages { time, factors };
        let (tensor, momentum) =
            averages.step(&self.settings, update, false, tensor, grad, momentum);
        (tensor, Some(RAdamState { momentum }))
    }

    fn to_device<const D: usize>(state: RAdamState<B>, device: &B::Device) -> RAdamState<B> {
        let momentum = state.momentum.on_device(device);
        RAdamState { momentum }
    }
}

/// What the step is multiplied by, with the bias of the second moment; none while its variance is unknown.
fn rectification(beta_2: f64, time: usize) -> Option<f64> {
    let correction = 1.0 - beta_2.powi(time as i32);
    let longest = 2.0 / (1.0 - beta_2) - 1.0;
    let length = longest - 2.0 * time as f64 * beta_2.powi(time as i32) / correction;
    let ratio = |length: f64| (length - 4.0) * (length - 2.0) / length;
    (length > 5.0).then(|| (ratio(length) / ratio(longest) * correction).sqrt())
}

#[derive(Clone, Copy)]
struct Rectified {
    step: f64,
    decay: f64,
    rectification: Option<f64>,
    epsilon: f64,
}

impl Update for Rectified {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let update = match self.rectification {
            Some(factor) => moment_1.mul_scalar(factor) / moment_2.sqrt().add_scalar(self.epsilon),
            None => moment_1,
        };
        weight.mul_scalar(self.decay) - update.mul_scalar(self.step)
    }
}

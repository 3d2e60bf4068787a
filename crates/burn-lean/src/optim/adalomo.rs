//! AdaLomo.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::rules;

use super::factored::{Factored, clipped};
use super::record::{Field, record_state};
use super::settings::checked_clipping;
use super::step::Whole;
use crate::gradients::takes_f32_gradients;
use crate::wide::wide;

/// Configuration of [`AdaLomo`].
#[derive(Config, Debug)]
pub struct AdaLomoConfig {
    /// The largest root mean square of an update.
    #[config(default = 1.0)]
    pub clip_threshold: f64,
    /// The second moment keeps `1 - step^decay_rate` of itself.
    #[config(default = -0.8)]
    pub decay_rate: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself, times the root
    /// mean square of the parameter.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Clipping of gradients, before all else.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl AdaLomoConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> AdaLomo {
        let rule = rules::Adafactor {
            epsilon: 1e-30,
            least_scale: Some(1e-3),
            clip_threshold: self.clip_threshold,
            decay_rate: self.decay_rate,
            beta_1: None,
            weight_decay: self.weight_decay,
        };
        AdaLomo {
            rule: rule.checked(),
            clipping: checked_clipping(self.grad_clipping.clone()),
        }
    }

    /// The optimizer for all parameters of a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::from(self.build())
    }
}

/// AdaLomo: Adafactor without a first moment, stepped inside the backward pass, as gradient release
/// does with any optimizer.
///
/// Lv et al., "AdaLomo: Low-memory Optimization with Adaptive Learning Rate" (2024),
/// <https://arxiv.org/abs/2310.10195>. Burn's [`Adafactor`](burn::optim::Adafactor) without
/// `relative_step` does the same but for its weight decay, which here is scaled as the step is, as
/// in transformers. It runs on every backend, by Burn's operations.
#[derive(Clone, Debug)]
pub struct AdaLomo {
    rule: rules::Adafactor,
    clipping: Option<GradientClippingConfig>,
}

/// State of [`AdaLomo`].
#[derive(Clone, Debug)]
pub struct AdaLomoState<const D: usize> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of squared gradients.
    pub square: Factored<D>,
}

record_state!(AdaLomoState { time, square });

impl Optimizer for AdaLomo {
    type State<const D: usize> = AdaLomoState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdaLomoState<D>>,
    ) -> (Tensor<D>, Option<AdaLomoState<D>>) {
        let dtype = tensor.dtype();
        let wide = wide(dtype);
        if wide != dtype {
            takes_f32_gradients();
        }
        let Some(grad) = clipped(&self.clipping, grad.cast(wide)) else {
            return (tensor, state);
        };
        let state = state.map(|state| rules::AdafactorState {
            time: state.time,
            square: state.square.map(|mean| Whole(mean.cast(wide))),
            moment_1: None,
        });
        let tensor = Whole(tensor.cast(wide));
        let (Whole(tensor), state) = self.rule.step(lr, tensor, Whole(grad), state);
        let state = AdaLomoState {
            time: state.time,
            square: state.square.map(|Whole(mean)| mean),
        };
        (tensor.cast(dtype), Some(state))
    }

    fn to_device<const D: usize>(state: AdaLomoState<D>, device: &Device) -> AdaLomoState<D> {
        state.on_device(device)
    }
}

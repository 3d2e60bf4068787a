//! CAME.

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

/// Configuration of [`Came`].
#[derive(Config, Debug)]
pub struct CameConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay rate of the second moment.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Decay rate of the instability.
    #[config(default = 0.9999)]
    pub beta_3: f64,
    /// Added to squared gradients.
    #[config(default = 1e-30)]
    pub epsilon_1: f64,
    /// Added to the squared instability.
    #[config(default = 1e-16)]
    pub epsilon_2: f64,
    /// The largest root mean square of an update.
    #[config(default = 1.0)]
    pub clip_threshold: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Clipping of gradients, before all else.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl CameConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> Came {
        let rule = rules::Came {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            beta_3: self.beta_3,
            epsilon_1: self.epsilon_1,
            epsilon_2: self.epsilon_2,
            clip_threshold: self.clip_threshold,
            weight_decay: self.weight_decay,
        };
        Came {
            rule: rule.checked(),
            clipping: checked_clipping(self.grad_clipping.clone()),
        }
    }

    /// The optimizer for all parameters of a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::from(self.build())
    }
}

/// CAME: Adafactor with a first moment, and smaller steps where that disagrees with the update.
///
/// Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization" (2023),
/// <https://arxiv.org/abs/2307.02047>. It runs on every backend, by Burn's operations.
#[derive(Clone, Debug)]
pub struct Came {
    rule: rules::Came,
    clipping: Option<GradientClippingConfig>,
}

/// State of [`Came`].
#[derive(Clone, Debug)]
pub struct CameState<const D: usize> {
    /// Moving average of updates.
    pub moment_1: Tensor<D>,
    /// Moving average of squared gradients.
    pub square: Factored<D>,
    /// Moving average of the squared difference between update and first moment, for matrices.
    pub instability: Option<Factored<D>>,
}

record_state!(CameState {
    moment_1,
    square,
    instability
});

impl Optimizer for Came {
    type State<const D: usize> = CameState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<CameState<D>>,
    ) -> (Tensor<D>, Option<CameState<D>>) {
        let dtype = tensor.dtype();
        let wide = wide(dtype);
        if wide != dtype {
            takes_f32_gradients();
        }
        let Some(grad) = clipped(&self.clipping, grad.cast(wide)) else {
            return (tensor, state);
        };
        let whole = |tensor: Tensor<D>| Whole(tensor.cast(wide));
        let state = state.map(|state| rules::CameState {
            moment_1: whole(state.moment_1),
            square: state.square.map(whole),
            instability: state.instability.map(|mean| mean.map(whole)),
        });
        let (Whole(tensor), state) = self.rule.step(lr, whole(tensor), Whole(grad), state);
        let tensor_of = |Whole(tensor)| tensor;
        let state = CameState {
            moment_1: state.moment_1.0,
            square: state.square.map(tensor_of),
            instability: state.instability.map(|mean| mean.map(tensor_of)),
        };
        (tensor.cast(dtype), Some(state))
    }

    fn to_device<const D: usize>(state: CameState<D>, device: &Device) -> CameState<D> {
        state.on_device(device)
    }
}

//! CAME.

use burn::{
    config::Config,
    grad_clipping::GradientClippingConfig,
    module::AutodiffModule,
    optim::{LearningRate, SimpleOptimizer, adaptor::OptimizerAdaptor},
    record::Record,
    tensor::{
        Tensor,
        backend::{AutodiffBackend, Backend},
    },
};
use lean_arithmetic::optim::rules;

use super::{
    adaptor,
    factored::{Factored, clipped, moment},
};
use crate::{
    moment::{Moment, wide},
    number::Whole,
    settings::checked_clipping,
    step::floats,
};

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

    /// The optimizer for all parameters of a module, which clips as that of
    /// [`Lean::init`](crate::Lean::init).
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(&self) -> OptimizerAdaptor<Came, M, B> {
        let mut came = self.build();
        let clipping = came.clipping.take();
        adaptor(came, clipping.map(|clipping| clipping.init()))
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
#[derive(Record, Clone, Debug)]
pub struct CameState<B: Backend> {
    /// Moving average of updates.
    pub moment_1: Moment<B>,
    /// Moving average of squared gradients.
    pub square: Factored<B>,
    /// Moving average of the squared difference between update and first moment, for matrices.
    pub instability: Option<Factored<B>>,
}

impl<B: Backend> SimpleOptimizer<B> for Came {
    type State<const D: usize> = CameState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<CameState<B>>,
    ) -> (Tensor<B, D>, Option<CameState<B>>) {
        let dtype = tensor.dtype();
        let wide = wide(dtype);
        let Some(grad) = clipped(&self.clipping, grad.cast(wide)) else {
            return (tensor, state);
        };
        let state = state.map(|state| rules::CameState {
            moment_1: Whole(floats(state.moment_1, wide)),
            square: state.square.of_type(wide),
            instability: state.instability.map(|factored| factored.of_type(wide)),
        });
        let tensor = Whole(tensor.cast(wide));
        let (Whole(tensor), state) = self.rule.step(lr, tensor, Whole(grad), state);
        let state = CameState {
            moment_1: moment(state.moment_1),
            square: state.square.into(),
            instability: state.instability.map(Into::into),
        };
        (tensor.cast(dtype), Some(state))
    }

    fn to_device<const D: usize>(state: CameState<B>, device: &B::Device) -> CameState<B> {
        CameState {
            moment_1: state.moment_1.on_device(device),
            square: state.square.on_device(device),
            instability: state
                .instability
                .map(|instability| instability.on_device(device)),
        }
    }
}

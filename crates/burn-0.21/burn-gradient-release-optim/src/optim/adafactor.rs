//! Adafactor and AdaLomo.

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

/// Configuration of [`Adafactor`]: the defaults of transformers, but for its `relative_step`, which
/// would ignore the learning rate. A scheduler with `min(0.01, 1 / sqrt(step))` does the same.
#[derive(Config, Debug)]
pub struct AdafactorConfig {
    /// Added to squared gradients.
    #[config(default = 1e-30)]
    pub epsilon: f64,
    /// The least root mean square of a parameter that its learning rate is scaled by.
    #[config(default = 1e-3)]
    pub least_scale: f64,
    /// The largest root mean square of an update.
    #[config(default = 1.0)]
    pub clip_threshold: f64,
    /// The second moment keeps `1 - step^decay_rate` of itself.
    #[config(default = -0.8)]
    pub decay_rate: f64,
    /// Decay rate of the first moment, which is as large as the parameter. `None` keeps no first
    /// moment.
    pub beta_1: Option<f64>,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself, and with
    /// `scale_parameter` by that times the scale of the parameter, as the rate is scaled.
    #[config(default = 0.0)]
    pub weight_decay: f64,
    /// Whether the learning rate of a parameter is multiplied by its root mean square.
    #[config(default = true)]
    pub scale_parameter: bool,
    /// Clipping of gradients, before all else.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl AdafactorConfig {
    /// Builds the optimizer.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn build(&self) -> Adafactor {
        let rule = rules::Adafactor {
            epsilon: self.epsilon,
            least_scale: self.scale_parameter.then_some(self.least_scale),
            clip_threshold: self.clip_threshold,
            decay_rate: self.decay_rate,
            beta_1: self.beta_1,
            weight_decay: self.weight_decay,
        };
        Adafactor {
            rule: rule.checked(),
            clipping: checked_clipping(self.grad_clipping.clone()),
        }
    }

    /// The optimizer for all parameters of a module, which clips as that of
    /// [`Lean::init`](crate::Lean::init).
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(
        &self,
    ) -> OptimizerAdaptor<Adafactor, M, B> {
        self.build().init()
    }
}

/// Configuration of AdaLomo.
///
/// Lv et al., "AdaLomo: Low-memory Optimization with Adaptive Learning Rate" (2024),
/// <https://arxiv.org/abs/2310.10195>: the rule of [`Adafactor`] without a first moment, stepped
/// inside the backward pass, as gradient release does with any optimizer.
#[derive(Config, Debug)]
pub struct AdaLomoConfig {
    /// The largest root mean square of an update.
    #[config(default = 1.0)]
    pub clip_threshold: f64,
    /// The second moment keeps `1 - step^decay_rate` of itself.
    #[config(default = -0.8)]
    pub decay_rate: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself times the scale
    /// of the parameter, as the rate is scaled.
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
    pub fn build(&self) -> Adafactor {
        AdafactorConfig::new()
            .with_clip_threshold(self.clip_threshold)
            .with_decay_rate(self.decay_rate)
            .with_weight_decay(self.weight_decay)
            .with_grad_clipping(self.grad_clipping.clone())
            .build()
    }

    /// The optimizer for all parameters of a module, which clips as that of
    /// [`Lean::init`](crate::Lean::init).
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(
        &self,
    ) -> OptimizerAdaptor<Adafactor, M, B> {
        self.build().init()
    }
}

/// Adafactor: a second moment of rows and columns, so that a matrix of a million elements has a
/// state of two thousand.
///
/// Shazeer and Stern (2018), <https://arxiv.org/abs/1804.04235>; the rule is that of transformers.
/// It runs on every backend, by Burn's operations.
#[derive(Clone, Debug)]
pub struct Adafactor {
    rule: rules::Adafactor,
    clipping: Option<GradientClippingConfig>,
}

impl Adafactor {
    fn init<B: AutodiffBackend, M: AutodiffModule<B>>(mut self) -> OptimizerAdaptor<Self, M, B> {
        let clipping = self.clipping.take();
        adaptor(self, clipping.map(|clipping| clipping.init()))
    }
}

/// State of [`Adafactor`].
#[derive(Record, Clone, Debug)]
pub struct AdafactorState<B: Backend> {
    /// Number of steps taken.
    pub time: usize,
    /// Moving average of squared gradients.
    pub square: Factored<B>,
    /// Moving average of updates, with a first moment.
    pub moment_1: Option<Moment<B>>,
}

impl<B: Backend> SimpleOptimizer<B> for Adafactor {
    type State<const D: usize> = AdafactorState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdafactorState<B>>,
    ) -> (Tensor<B, D>, Option<AdafactorState<B>>) {
        let dtype = tensor.dtype();
        let wide = wide(dtype);
        let Some(grad) = clipped(&self.clipping, grad.cast(wide)) else {
            return (tensor, state);
        };
        let state = state.map(|state| rules::AdafactorState {
            time: state.time,
            square: state.square.of_type(wide),
            moment_1: state.moment_1.map(|moment| Whole(floats(moment, wide))),
        });
        let tensor = Whole(tensor.cast(wide));
        let (Whole(tensor), state) = self.rule.step(lr, tensor, Whole(grad), state);
        let state = AdafactorState {
            time: state.time,
            square: state.square.into(),
            moment_1: state.moment_1.map(moment),
        };
        (tensor.cast(dtype), Some(state))
    }

    fn to_device<const D: usize>(
        state: AdafactorState<B>,
        device: &B::Device,
    ) -> AdafactorState<B> {
        AdafactorState {
            time: state.time,
            square: state.square.on_device(device),
            moment_1: state.moment_1.map(|moment| moment.on_device(device)),
        }
    }
}

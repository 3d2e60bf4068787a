//! AdamW.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{AdamWConfig, LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use serde::Deserialize;

use super::{
    InOnePass, Lean,
    adaptive::{AdaptiveMomentumState, Averages, Update},
    configuration,
};
use crate::{EightBitMoments, LeanBackend, Number, pass::Settings};

/// Burn's [`AdamW`](burn::optim::AdamW) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct AdamW {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: f32,
    cautious: bool,
    max_lr: Option<LearningRate>,
    settings: Settings,
}

impl AdamW {
    /// Decays by `weight_decay * lr / max_lr` in place of `weight_decay * lr`: weight decay that does not depend
    /// on the learning rate, but for its schedule. `max_lr` is the highest rate of the schedule.
    ///
    /// The option `decouple_lr` of optimi, after Loshchilov and Hutter (2019), section 4.
    pub fn with_decoupled_lr(mut self, max_lr: LearningRate) -> Self {
        self.max_lr = Some(max_lr);
        self
    }

    fn decay_rate(&self, lr: LearningRate) -> f64 {
        match self.max_lr {
            Some(max_lr) => lr / max_lr * f64::from(self.weight_decay),
            None => lr * f64::from(self.weight_decay),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
            beta_1: config.beta_1,
            beta_2: config.beta_2,
            epsilon: config.epsilon,
            amsgrad: config.amsgrad,
            weight_decay: config.weight_decay,
            cautious: config.cautious_weight_decay,
            max_lr: None,
            settings: Settings::clipping(config.grad_clipping),
        }
    }
}

impl Lean for AdamW {
    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for AdamW {}

/// State of [`AdamW`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct AdamWState<B: Backend> {
    /// The moments.
    pub momentum: AdaptiveMomentumState<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for AdamW {
    type State<const D: usize> = AdamWState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdamWState<B>>,
    ) -> (Tensor<B, D>, Option<AdamWState<B>>) {
        let momentum = state.map(|state| state.momentum);
        let (averages, [correction_1, correction_2]) = Averages::as_burn(
            self.beta_1,
            self.beta_2,
            self.settings.part,
            momentum.as_ref(),
        );
        let decay_rate = self.decay_rate(lr);
        let moved = Moved {
            lr,
            correction_1: correction_1.into(),
            correction_2: correction_2.into(),
            epsilon: self.epsilon.into(),
        };
        let settings = &self.settings;
        let (tensor, momentum) = if self.cautious {
            let update = CautiouslyDecayed { decay_rate, moved };
            averages.step(settings, update, self.amsgrad, tensor, grad, momentum)
        } else {
            // Without decay the factor is one, which changes no bit.
            let update = Decayed {
                factor: 1.0 - decay_rate,
                moved,
            };
            averages.step(settings, update, self.amsgrad, tensor, grad, momentum)
        };
        (tensor, Some(AdamWState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamWState<B>, device: &B::Device) -> AdamWState<B> {
        let momentum = state.momentum.on_device(device);
        AdamWState { momentum }
    }
}

/// The step without weight decay.
#[derive(Clone, Copy)]
struct Moved {
    lr: f64,
    correction_1: f64,
    correction_2: f64,
    epsilon: f64,
}

impl Moved {
    #[inline(always)]
    fn weight<T: Number>(&self, decayed: T, moment_1: T, moment_2: T) -> T {
        let root = moment_2.div_scalar(self.correction_2).sqrt();
        let update = moment_1.div_scalar(self.correction_1) / root.add_scalar(self.epsilon);
        decayed - update.mul_scalar(self.lr)
    }
}

/// Weight decay that does not go through the gradient.
#[derive(Clone, Copy)]
struct Decayed {
    factor: f64,
    moved: Moved,
}

impl Update for Decayed {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        self.moved
            .weight(weight.mul_scalar(self.factor), moment_1, moment_2)
    }
}

/// Weight decay only where it does not work against the step: <https://arxiv.org/abs/2510.12402>.
#[derive(Clone, Copy)]
struct CautiouslyDecayed {
    decay_rate: f64,
    moved: Moved,
}

impl Update for CautiouslyDecayed {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let decay = weight.clone().mul_scalar(self.decay_rate);
        let decay = decay.zero_where_signs_differ(weight.clone(), moment_1.clone());
        self.moved.weight(weight - decay, moment_1, moment_2)
    }
}

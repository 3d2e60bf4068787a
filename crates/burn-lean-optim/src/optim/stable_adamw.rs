//! StableAdamW.

use burn::{
    config::Config,
    grad_clipping::GradientClippingConfig,
    optim::{LearningRate, SimpleOptimizer},
    record::Record,
    tensor::{Tensor, backend::Backend},
};

use super::{
    Lean,
    adaptive::{Factors, Update, WithMoments},
};
use crate::{
    EightBitMoments, LeanBackend, Number,
    backend::{Measure, Operands},
    moment::{Moment, from_float},
    pass::{Kind, Settings, mean},
};

/// Configuration of [`StableAdamW`].
#[derive(Config, Debug)]
pub struct StableAdamWConfig {
    /// How much of the first moment is kept.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// How much of the second moment is kept.
    #[config(default = 0.99)]
    pub beta_2: f64,
    /// Added to the root of the second moment.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Weight decay, decoupled: a weight shrinks by `lr * weight_decay` of itself.
    #[config(default = 1e-2)]
    pub weight_decay: f64,
    /// Clipping of gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl StableAdamWConfig {
    /// Builds the optimizer.
    pub fn build(&self) -> StableAdamW {
        StableAdamW {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            settings: Settings::clipping(self.grad_clipping.clone()),
        }
    }
}

/// AdamW whose learning rate shrinks, parameter by parameter, where gradients are larger than the second moment
/// knows: what replaces clipping by the global norm where gradients are released.
///
/// Wortsman et al., "Stable and low-precision training for large-scale vision-language models" (2023),
/// <https://arxiv.org/abs/2304.13013>; as optimi has it, with its defaults.
#[derive(Clone, Debug)]
pub struct StableAdamW {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    weight_decay: f64,
    settings: Settings,
}

impl Lean for StableAdamW {
    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl EightBitMoments for StableAdamW {}

impl StableAdamW {
    /// The rate, divided by how much larger than expected the gradient is.
    fn stable_rate<B: LeanBackend, const D: usize>(
        &self,
        lr: LearningRate,
        factors: Factors,
        operands: &Operands<B, 2>,
    ) -> LearningRate {
        let surprise = Surprise {
            factors,
            least: self.epsilon * self.epsilon,
        };
        let root_mean_square = f64::from(mean::<_, _, _, D>(&surprise, operands)).sqrt();
        // As `f64::max` would, but for what is not a number.
        match root_mean_square <= 1.0 {
            true => lr,
            false => lr / root_mean_square,
        }
    }
}

/// State of [`StableAdamW`].
#[derive(Record, Clone, Debug)]
pub struct StableAdamWState<B: Backend> {
    /// How many steps there were.
    pub time: usize,
    /// Moving average of gradients, without bias.
    pub moment_1: Moment<B>,
    /// Moving average of squared gradients, without bias.
    pub moment_2: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for StableAdamW {
    type State<const D: usize> = StableAdamWState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<StableAdamWState<B>>,
    ) -> (Tensor<B, D>, Option<StableAdamWState<B>>) {
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        // The bias is in the averages' own factors: in the first step they take the gradient as it is.
        let debiased = |beta: f64| {
            let power = beta.powi(time as i32);
            (power - beta) / (power - 1.0)
        };
        let [beta_1, beta_2] = [self.beta_1, self.beta_2].map(debiased);
        let factors = Factors::new(beta_1, beta_2);
        let epsilon = self.epsilon;
        let states = state.map(|state| [state.moment_1, state.moment_2]);
        let kinds = [Kind::Signed, Kind::Positive];
        let operands = self.settings.operands(kinds, tensor, grad, states);

        let lr = match self.settings.part.moves {
            true => self.stable_rate::<_, D>(lr, factors, &operands),
            false => lr,
        };
        let update = Decayed {
            lr,
            decay: 1.0 - lr * self.weight_decay,
            epsilon,
        };
        let stepped = self
            .settings
            .apply::<_, _, _, D>(&WithMoments { factors, update }, operands);
        let [moment_1, moment_2] = stepped.states;
        let state = StableAdamWState {
            time,
            moment_1,
            moment_2,
        };
        (from_float(stepped.weight), Some(state))
    }

    fn to_device<const D: usize>(
        state: StableAdamWState<B>,
        device: &B::Device,
    ) -> StableAdamWState<B> {
        StableAdamWState {
            time: state.time,
            moment_1: state.moment_1.on_device(device),
            moment_2: state.moment_2.on_device(device),
        }
    }
}

/// The squared gradient over its moving average.
#[derive(Clone, Copy)]
struct Surprise {
    factors: Factors,
    least: f64,
}

impl Measure<2> for Surprise {
    #[inline(always)]
    fn first<T: Number>(&self, grad: T) -> T {
        let [_, moment_2] = self.factors.first(grad.clone());
        grad.square() / moment_2.clamp_min(self.least)
    }

    #[inline(always)]
    fn next<T: Number>(&self, grad: T, [moment_1, moment_2]: [T; 2]) -> T {
        let [_, moment_2] = self.factors.next(grad.clone(), moment_1, moment_2);
        grad.square() / moment_2.clamp_min(self.least)
    }
}

#[derive(Clone, Copy)]
struct Decayed {
    lr: f64,
    decay: f64,
    epsilon: f64,
}

impl Update for Decayed {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let update = moment_1 / moment_2.sqrt().add_scalar(self.epsilon);
        weight.mul_scalar(self.decay) - update.mul_scalar(self.lr)
    }
}

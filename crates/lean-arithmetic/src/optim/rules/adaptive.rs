//! First and second moments, as in Adam, AdamW, RAdam and others.

use std::fmt::Debug;

use super::super::{CannotAccumulate, Measure, MicroBatch, MomentDecay, Number, Rule};

/// An optimizer that steps by a first and a second moment.
pub trait AdaptiveRule: Copy + Debug + Send + Sync + 'static {
    /// How the moments change the weight.
    type Update: Update;

    /// The learning rate of step number `time`, which may depend on the mean of a measure.
    fn lr(&self, lr: f64, _time: usize, _mean: impl FnOnce(Surprise) -> f64) -> f64 {
        lr
    }

    /// The rule of step number `time`.
    fn rule(&self, lr: f64, time: usize, micro_batch: MicroBatch) -> WithMoments<Self::Update>;

    /// Decay rates of the moments, by name.
    fn kept_shares(&self) -> [(&'static str, f64); 2];

    /// Refuses moments that cannot take in gradients of micro-batches.
    ///
    /// # Errors
    ///
    /// Why moments that decay so cannot.
    fn check_accumulating(&self, _decay: MomentDecay) -> Result<(), CannotAccumulate> {
        Ok(())
    }
}

/// How the moments of an optimizer change the weight.
pub trait Update: Copy + Send + Sync + 'static {
    /// The gradient that goes into the moments.
    #[inline(always)]
    fn gradient<T: Number>(&self, _weight: &T, grad: T) -> T {
        grad
    }

    /// The new weight.
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T;
}

/// Weights of the old moment and of the gradient in each moment.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Factor of the gradient in the first moment.
    pub rest_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Factor of the squared gradient in the second moment.
    pub rest_2: f64,
}

impl Factors {
    /// Factors for decay rates in 64 bits.
    pub fn new(beta_1: f64, beta_2: f64) -> Self {
        Self {
            beta_1,
            rest_1: 1.0 - beta_1,
            beta_2,
            rest_2: 1.0 - beta_2,
        }
    }

    /// Factors as Burn's optimizers compute them, in 32 bits.
    pub fn as_burn(beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: beta_1.into(),
            rest_1: (1.0 - beta_1).into(),
            beta_2: beta_2.into(),
            rest_2: (1.0 - beta_2).into(),
        }
    }

    /// Factors for one micro-batch of a step.
    pub fn in_micro_batch(self, micro_batch: MicroBatch) -> Self {
        Self {
            beta_1: micro_batch.kept(self.beta_1),
            beta_2: micro_batch.kept(self.beta_2),
            ..self
        }
    }

    /// Adds a gradient to the moments, if there are any yet.
    #[inline(always)]
    pub(super) fn moments<T: Number>(&self, grad: T, moments: Option<[T; 2]>) -> [T; 2] {
        match moments {
            None => [
                grad.clone().mul_scalar(self.rest_1),
                grad.square().mul_scalar(self.rest_2),
            ],
            Some([moment_1, moment_2]) => [
                moment_1.mul_scalar(self.beta_1) + grad.clone().mul_scalar(self.rest_1),
                moment_2.mul_scalar(self.beta_2) + grad.square().mul_scalar(self.rest_2),
            ],
        }
    }
}

/// The squared gradient over its moving average; zero for NaN, which would otherwise spread to the
/// mean and so to all weights of the parameter.
#[derive(Clone, Copy, Debug)]
pub struct Surprise {
    pub(super) factors: Factors,
    pub(super) least: f64,
}

impl Measure<2> for Surprise {
    #[inline(always)]
    fn measure<T: Number>(&self, grad: T, states: Option<[T; 2]>) -> T {
        let [_, moment_2] = self.factors.moments(grad.clone(), states);
        // NaN stays NaN in `max_pair`, and the last operation makes it zero.
        let least = moment_2.zeros_like().add_scalar(self.least);
        (grad.square() / moment_2.max_pair(least)).clamp_min(0.0)
    }
}

/// Moves a weight by its first and its second moment.
#[derive(Clone, Copy, Debug)]
pub struct WithMoments<U> {
    /// How the moments change.
    pub factors: Factors,
    /// How the moments change the weight.
    pub update: U,
}

impl<U: Update> Rule<2> for WithMoments<U> {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 2]>) -> (T, [T; 2]) {
        let grad = self.update.gradient(&weight, grad);
        let [moment_1, moment_2] = self.factors.moments(grad, states);
        let weight = self
            .update
            .weight(weight, moment_1.clone(), moment_2.clone());
        (weight, [moment_1, moment_2])
    }
}

/// AMSGrad: divides by the largest second moment so far.
#[derive(Clone, Copy, Debug)]
pub struct AmsGrad<U>(pub WithMoments<U>);

impl<U: Update> Rule<3> for AmsGrad<U> {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 3]>) -> (T, [T; 3]) {
        let Self(WithMoments { factors, update }) = self;
        let states = states.map(|[moment_1, moment_2, most]| ([moment_1, moment_2], most));
        let (moments, most) = states.unzip();
        let grad = update.gradient(&weight, grad);
        let [moment_1, moment_2] = factors.moments(grad, moments);
        let most = match most {
            Some(most) => most.max_pair(moment_2.clone()),
            None => moment_2.clone(),
        };
        let weight = update.weight(weight, moment_1.clone(), most.clone());
        (weight, [moment_1, moment_2, most])
    }
}

//! First and second moments, as Adam, AdamW, RAdam and others have them.

use super::super::{Number, Part, Rule};

/// What an optimizer does with its moments.
pub trait Update: Copy + Send + Sync + 'static {
    /// The gradient that goes into the moments.
    #[inline(always)]
    fn gradient<T: Number>(&self, weight: &T, grad: T) -> T {
        let _ = weight;
        grad
    }

    /// The new weight.
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T;
}

/// What moments keep of themselves, and take of a gradient.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// What the first moment keeps.
    pub beta_1: f64,
    /// What it takes.
    pub rest_1: f64,
    /// What the second moment keeps.
    pub beta_2: f64,
    /// What it takes.
    pub rest_2: f64,
}

impl Factors {
    /// Those of betas of 64 bits.
    pub fn new(beta_1: f64, beta_2: f64) -> Self {
        Self {
            beta_1,
            rest_1: 1.0 - beta_1,
            beta_2,
            rest_2: 1.0 - beta_2,
        }
    }

    /// Those of Burn's optimizers: betas have 32 bits, and what is computed of them is rounded to
    /// as many.
    pub fn as_burn(beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: beta_1.into(),
            rest_1: (1.0 - beta_1).into(),
            beta_2: beta_2.into(),
            rest_2: (1.0 - beta_2).into(),
        }
    }

    /// Those of a part of a step.
    pub fn in_part(self, part: Part) -> Self {
        Self {
            beta_1: part.kept(self.beta_1),
            beta_2: part.kept(self.beta_2),
            ..self
        }
    }

    #[inline(always)]
    pub(super) fn first<T: Number>(&self, grad: T) -> [T; 2] {
        [
            grad.clone().mul_scalar(self.rest_1),
            grad.square().mul_scalar(self.rest_2),
        ]
    }

    #[inline(always)]
    pub(super) fn next<T: Number>(&self, grad: T, moment_1: T, moment_2: T) -> [T; 2] {
        [
            moment_1.mul_scalar(self.beta_1) + grad.clone().mul_scalar(self.rest_1),
            moment_2.mul_scalar(self.beta_2) + grad.square().mul_scalar(self.rest_2),
        ]
    }
}

/// Moves a weight by its first and its second moment.
#[derive(Clone, Copy, Debug)]
pub struct WithMoments<U> {
    /// How the moments change.
    pub factors: Factors,
    /// How the weight does.
    pub update: U,
}

impl<U: Update> Rule<2> for WithMoments<U> {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 2]) {
        let grad = self.update.gradient(&weight, grad);
        let [moment_1, moment_2] = self.factors.first(grad);
        let weight = self
            .update
            .weight(weight, moment_1.clone(), moment_2.clone());
        (weight, [moment_1, moment_2])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, [moment_1, moment_2]: [T; 2]) -> (T, [T; 2]) {
        let grad = self.update.gradient(&weight, grad);
        let [moment_1, moment_2] = self.factors.next(grad, moment_1, moment_2);
        let weight = self
            .update
            .weight(weight, moment_1.clone(), moment_2.clone());
        (weight, [moment_1, moment_2])
    }
}

/// AMSGrad: the largest second moment so far in the place of the second moment.
#[derive(Clone, Copy, Debug)]
pub struct AmsGrad<U>(pub WithMoments<U>);

impl<U: Update> Rule<3> for AmsGrad<U> {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 3]) {
        let (weight, [moment_1, moment_2]) = self.0.first(weight, grad);
        (weight, [moment_1, moment_2.clone(), moment_2])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; 3]) -> (T, [T; 3]) {
        let Self(WithMoments { factors, update }) = self;
        let [moment_1, moment_2, most] = state;
        let grad = update.gradient(&weight, grad);
        let [moment_1, moment_2] = factors.next(grad, moment_1, moment_2);
        let most = most.max_pair(moment_2.clone());
        let weight = update.weight(weight, moment_1.clone(), most.clone());
        (weight, [moment_1, moment_2, most])
    }
}

/// What Burn's optimizers divide the moments by for their bias, rounded as there.
pub(super) fn corrections_as_burn(beta_1: f32, beta_2: f32, time: usize) -> [f32; 2] {
    [beta_1, beta_2].map(|beta| 1.0 - beta.powi(time as i32))
}

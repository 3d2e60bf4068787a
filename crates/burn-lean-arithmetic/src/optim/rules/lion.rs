//! Lion.

use super::{
    super::{Number, Rule},
    Factors,
};
use crate::settings::{amount, expect_in_range, share};

/// Lion.
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// What goes into the step of momentum and gradient, and what into the next momentum.
    pub factors: Factors,
    /// Weight decay that does not go through the gradient.
    pub weight_decay: f64,
}

impl Lion {
    /// The same.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "Lion",
            &[
                share("beta_1", self.factors.beta_1),
                share("beta_2", self.factors.beta_2),
                amount("weight_decay", self.weight_decay),
            ],
        );
        self
    }

    /// The rule of a step.
    pub fn rule(&self, lr: f64) -> Signed {
        Signed {
            lr,
            decay: 1.0 - lr * self.weight_decay,
            factors: self.factors,
        }
    }
}

/// The step of [`Lion`].
#[derive(Clone, Copy, Debug)]
pub struct Signed {
    lr: f64,
    decay: f64,
    factors: Factors,
}

impl Signed {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, direction: T) -> T {
        weight.mul_scalar(self.decay) - direction.sign().mul_scalar(self.lr)
    }
}

impl Rule<1> for Signed {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 1]) {
        let direction = grad.clone().mul_scalar(self.factors.rest_1);
        let momentum = grad.mul_scalar(self.factors.rest_2);
        (self.weight(weight, direction), [momentum])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, [momentum]: [T; 1]) -> (T, [T; 1]) {
        let factors = &self.factors;
        let direction =
            momentum.clone().mul_scalar(factors.beta_1) + grad.clone().mul_scalar(factors.rest_1);
        let momentum = momentum.mul_scalar(factors.beta_2) + grad.mul_scalar(factors.rest_2);
        (self.weight(weight, direction), [momentum])
    }
}

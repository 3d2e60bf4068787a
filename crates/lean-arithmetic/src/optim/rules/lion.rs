//! Lion.

use super::{
    super::{Number, Rule},
    Factors,
};
use crate::settings::{amount, expect_in_range, share};

/// Lion.
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// Weights of momentum and gradient: the first pair in the step, the second in the new
    /// momentum.
    pub factors: Factors,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Lion {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
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

impl Rule<1> for Signed {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 1]>) -> (T, [T; 1]) {
        let Factors {
            beta_1,
            rest_1,
            beta_2,
            rest_2,
        } = self.factors;
        let [direction, momentum] = match states {
            None => [grad.clone().mul_scalar(rest_1), grad.mul_scalar(rest_2)],
            Some([momentum]) => [
                momentum.clone().mul_scalar(beta_1) + grad.clone().mul_scalar(rest_1),
                momentum.mul_scalar(beta_2) + grad.mul_scalar(rest_2),
            ],
        };
        let weight = weight.mul_scalar(self.decay) - direction.sign().mul_scalar(self.lr);
        (weight, [momentum])
    }
}

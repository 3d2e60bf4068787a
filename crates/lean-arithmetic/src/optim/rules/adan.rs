//! Adan.

use super::{
    super::{Number, Rule},
    correction_as_burn,
};
use crate::settings::{amount, expect_in_range, share};

/// Adan, as Burn has it.
#[derive(Clone, Copy, Debug)]
pub struct Adan {
    /// Decay rate of the average of gradients.
    pub beta_1: f32,
    /// Decay rate of the average of their differences.
    pub beta_2: f32,
    /// Decay rate of the average of squares.
    pub beta_3: f32,
    /// Added to the root of the average of squares.
    pub epsilon: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Whether the weight decays before the step.
    pub no_prox: bool,
}

impl Adan {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "Adan",
            &[
                share("beta_1", self.beta_1.into()),
                share("beta_2", self.beta_2.into()),
                share("beta_3", self.beta_3.into()),
                amount("epsilon", self.epsilon.into()),
                amount("weight_decay", self.weight_decay.into()),
            ],
        );
        self
    }

    /// The rule of step number `time`.
    pub fn rule(&self, lr: f64, time: usize) -> Nesterov {
        let correction = |beta: f32| correction_as_burn(beta, time);
        Nesterov {
            lr,
            decay_rate: lr * f64::from(self.weight_decay),
            no_prox: self.no_prox,
            beta_1: self.beta_1.into(),
            rest_1: (1.0 - self.beta_1).into(),
            correction_1: correction(self.beta_1).into(),
            beta_2: self.beta_2.into(),
            rest_2: (1.0 - self.beta_2).into(),
            correction_2: correction(self.beta_2).into(),
            beta_3: self.beta_3.into(),
            rest_3: (1.0 - self.beta_3).into(),
            root_3: correction(self.beta_3).sqrt().into(),
            epsilon: self.epsilon.into(),
        }
    }
}

/// The step of [`Adan`].
#[derive(Clone, Copy, Debug)]
pub struct Nesterov {
    lr: f64,
    decay_rate: f64,
    no_prox: bool,
    beta_1: f64,
    rest_1: f64,
    correction_1: f64,
    beta_2: f64,
    rest_2: f64,
    correction_2: f64,
    beta_3: f64,
    rest_3: f64,
    root_3: f64,
    epsilon: f64,
}

impl Nesterov {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, average: T, square: T, difference: T) -> T {
        let root = square
            .sqrt()
            .div_scalar(self.root_3)
            .add_scalar(self.epsilon);
        let ahead = difference
            .mul_scalar(self.beta_2)
            .div_scalar(self.correction_2);
        let update = average.div_scalar(self.correction_1) / root.clone() + ahead / root;
        let step = update.mul_scalar(self.lr);
        if self.decay_rate == 0.0 {
            weight - step
        } else if self.no_prox {
            weight.mul_scalar(1.0 - self.decay_rate) - step
        } else {
            (weight - step).div_scalar(1.0 + self.decay_rate)
        }
    }
}

impl Rule<4> for Nesterov {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 4]>) -> (T, [T; 4]) {
        let [average, square, difference] = match states {
            None => [
                grad.clone().mul_scalar(self.rest_1),
                grad.clone().square().mul_scalar(self.rest_3),
                grad.zeros_like(),
            ],
            Some([average, square, difference, last]) => {
                let change = last + grad.clone();
                let ahead = (change.clone().mul_scalar(self.beta_2) + grad.clone()).square();
                let average =
                    average.mul_scalar(self.beta_1) + grad.clone().mul_scalar(self.rest_1);
                let difference =
                    difference.mul_scalar(self.beta_2) + change.mul_scalar(self.rest_2);
                let square = square.mul_scalar(self.beta_3) + ahead.mul_scalar(self.rest_3);
                [average, square, difference]
            }
        };
        let weight = self.weight(weight, average.clone(), square.clone(), difference.clone());
        (weight, [average, square, difference, grad.mul_scalar(-1.0)])
    }
}

//! AdaGrad.

use super::{
    super::{Number, Rule},
    CoupledDecay,
};
use crate::settings::{amount, expect_in_range};

/// The step of AdaGrad.
#[derive(Clone, Copy, Debug)]
pub struct AdaGrad {
    lr: f64,
    epsilon: f64,
    decay: CoupledDecay,
}

impl AdaGrad {
    /// Checks the arguments of [`new`](Self::new).
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
    pub fn expect_in_range(lr_decay: f64, epsilon: f32, decay: CoupledDecay) {
        expect_in_range(
            "AdaGrad",
            &[
                amount("lr_decay", lr_decay),
                amount("epsilon", epsilon.into()),
                decay.setting(),
            ],
        );
    }

    /// The rule of step number `time`, as Burn has it.
    pub fn new(lr: f64, lr_decay: f64, epsilon: f32, decay: CoupledDecay, time: usize) -> Self {
        Self {
            lr: lr / (1.0 + (time as f64 - 1.0) * lr_decay),
            epsilon: epsilon.into(),
            decay,
        }
    }
}

impl Rule<1> for AdaGrad {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; 1]>) -> (T, [T; 1]) {
        let grad = self.decay.gradient(&weight, grad);
        let square = grad.clone().square();
        let sum = match states {
            None => square,
            Some([sum]) => sum + square,
        };
        let update = grad / sum.clone().sqrt().add_scalar(self.epsilon);
        (weight - update.mul_scalar(self.lr), [sum])
    }
}

//! RAdam.

use super::{
    super::{MicroBatch, Number},
    AdaptiveRule, Factors, Update, WithMoments, power,
};
use crate::settings::{amount, expect_in_range, share};

/// RAdam.
#[derive(Clone, Copy, Debug)]
pub struct RAdam {
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl RAdam {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "RAdam",
            &[
                share("beta_1", self.beta_1),
                share("beta_2", self.beta_2),
                amount("epsilon", self.epsilon),
                amount("weight_decay", self.weight_decay),
            ],
        );
        self
    }
}

impl AdaptiveRule for RAdam {
    type Update = Rectified;

    fn rule(&self, lr: f64, time: usize, micro_batch: MicroBatch) -> WithMoments<Rectified> {
        WithMoments {
            factors: Factors::new(self.beta_1, self.beta_2).in_micro_batch(micro_batch),
            update: Rectified {
                step: lr / (1.0 - power(self.beta_1, time)),
                decay: 1.0 - lr * self.weight_decay,
                rectification: rectification(self.beta_2, time),
                epsilon: self.epsilon,
            },
        }
    }

    fn kept_shares(&self) -> [(&'static str, f64); 2] {
        [
            ("RAdam: beta_1", self.beta_1),
            ("RAdam: beta_2", self.beta_2),
        ]
    }
}

/// The factor of the step, which includes the bias correction of the second moment; `None` while
/// its variance is unknown.
fn rectification(beta_2: f64, time: usize) -> Option<f64> {
    let power = power(beta_2, time);
    let correction = 1.0 - power;
    let longest = 2.0 / (1.0 - beta_2) - 1.0;
    let length = longest - 2.0 * time as f64 * power / correction;
    let ratio = |length: f64| (length - 4.0) * (length - 2.0) / length;
    (length > 5.0).then(|| (ratio(length) / ratio(longest) * correction).sqrt())
}

/// The step of [`RAdam`].
#[derive(Clone, Copy, Debug)]
pub struct Rectified {
    step: f64,
    decay: f64,
    rectification: Option<f64>,
    epsilon: f64,
}

impl Update for Rectified {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let update = match self.rectification {
            Some(factor) => moment_1.mul_scalar(factor) / moment_2.sqrt().add_scalar(self.epsilon),
            None => moment_1,
        };
        weight.mul_scalar(self.decay) - update.mul_scalar(self.step)
    }
}

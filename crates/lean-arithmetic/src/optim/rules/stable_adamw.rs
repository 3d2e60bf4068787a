//! StableAdamW.

use super::{
    super::{CannotAccumulate, MicroBatch, MomentDecay, Number},
    AdaptiveRule, Factors, Surprise, Update, WithMoments, power,
};
use crate::settings::{amount, expect_in_range, share};

/// StableAdamW.
#[derive(Clone, Copy, Debug)]
pub struct StableAdamW {
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl StableAdamW {
    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "StableAdamW",
            &[
                share("beta_1", self.beta_1),
                share("beta_2", self.beta_2),
                amount("epsilon", self.epsilon),
                amount("weight_decay", self.weight_decay),
            ],
        );
        self
    }

    /// The measure before step number `time`, whose mean lowers the learning rate.
    pub fn measure(&self, time: usize) -> Surprise {
        Surprise {
            factors: self.factors(time),
            least: self.epsilon * self.epsilon,
        }
    }

    /// Factors that include the bias correction: the first moments are the gradient and its square.
    fn factors(&self, time: usize) -> Factors {
        let debiased = |beta: f64| {
            let power = power(beta, time);
            (power - beta) / (power - 1.0)
        };
        Factors::new(debiased(self.beta_1), debiased(self.beta_2))
    }
}

impl AdaptiveRule for StableAdamW {
    type Update = Decayed;

    fn lr(&self, lr: f64, time: usize, mean: impl FnOnce(Surprise) -> f64) -> f64 {
        let root_mean_square = mean(self.measure(time)).sqrt();
        lr / root_mean_square.max(1.0)
    }

    fn rule(&self, lr: f64, time: usize, _: MicroBatch) -> WithMoments<Decayed> {
        WithMoments {
            factors: self.factors(time),
            update: Decayed {
                lr,
                decay: 1.0 - lr * self.weight_decay,
                epsilon: self.epsilon,
            },
        }
    }

    fn kept_shares(&self) -> [(&'static str, f64); 2] {
        [
            ("StableAdamW: beta_1", self.beta_1),
            ("StableAdamW: beta_2", self.beta_2),
        ]
    }

    fn check_accumulating(&self, decay: MomentDecay) -> Result<(), CannotAccumulate> {
        decay.steps_with_gradient("StableAdamW")
    }
}

/// The step of [`StableAdamW`].
#[derive(Clone, Copy, Debug)]
pub struct Decayed {
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

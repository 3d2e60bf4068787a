//! StableAdamW.

use super::{
    super::{Measure, Number},
    Factors, Update, WithMoments,
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
    /// Weight decay that does not go through the gradient.
    pub weight_decay: f64,
}

impl StableAdamW {
    /// The same.
    ///
    /// # Panics
    ///
    /// If a setting is out of range, which is named with its value.
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

    /// What the mean of is taken before step number `time`, to know how far to go.
    pub fn measure(&self, time: usize) -> Surprise {
        Surprise {
            factors: self.factors(time),
            least: self.epsilon * self.epsilon,
        }
    }

    /// The rule of step number `time`, with the mean of its measure; without one the rate is not
    /// lowered.
    pub fn rule(&self, lr: f64, time: usize, mean: Option<f32>) -> WithMoments<Decayed> {
        let root_mean_square = mean.map_or(1.0, |mean| f64::from(mean).sqrt());
        // As `f64::max` would, but for what is not a number.
        let lr = match root_mean_square <= 1.0 {
            true => lr,
            false => lr / root_mean_square,
        };
        WithMoments {
            factors: self.factors(time),
            update: Decayed {
                lr,
                decay: 1.0 - lr * self.weight_decay,
                epsilon: self.epsilon,
            },
        }
    }

    /// The bias is in the averages' own factors: in the first step they take the gradient as it is.
    fn factors(&self, time: usize) -> Factors {
        let debiased = |beta: f64| {
            let power = beta.powi(time as i32);
            (power - beta) / (power - 1.0)
        };
        Factors::new(debiased(self.beta_1), debiased(self.beta_2))
    }
}

/// The squared gradient over its moving average.
#[derive(Clone, Copy, Debug)]
pub struct Surprise {
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

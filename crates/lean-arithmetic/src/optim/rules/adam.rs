//! Adam.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    super::{MicroBatch, Number, configuration},
    AdaptiveRule, CoupledDecay, Factors, Update, WithMoments, correction_as_burn,
};
use crate::settings::{amount, expect_in_range, share};

/// Adam, as Burn has it.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Decay rate of the first moment.
    pub beta_1: f32,
    /// Decay rate of the second moment.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight decay.
    pub decay: CoupledDecay,
}

impl Adam {
    /// Adam as a configuration of Burn has it, whether it is AMSGrad, and its clipping.
    ///
    /// # Panics
    ///
    /// If the configuration is that of another version of Burn, or a setting is out of range.
    pub fn of_burn<C: DeserializeOwned>(config: &impl Serialize) -> (Self, bool, Option<C>) {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Configuration<C> {
            beta_1: f32,
            beta_2: f32,
            epsilon: f32,
            amsgrad: bool,
            weight_decay: Option<WeightDecay>,
            grad_clipping: Option<C>,
        }
        let config: Configuration<C> = configuration(config);
        let adam = Self {
            beta_1: config.beta_1,
            beta_2: config.beta_2,
            epsilon: config.epsilon,
            decay: CoupledDecay(config.weight_decay.map(|decay| decay.penalty.into())),
        };
        (adam.checked(), config.amsgrad, config.grad_clipping)
    }

    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "Adam",
            &[
                share("beta_1", self.beta_1.into()),
                share("beta_2", self.beta_2.into()),
                amount("epsilon", self.epsilon.into()),
                self.decay.setting(),
            ],
        );
        self
    }
}

impl AdaptiveRule for Adam {
    type Update = AdamUpdate;

    fn rule(&self, lr: f64, time: usize, micro_batch: MicroBatch) -> WithMoments<AdamUpdate> {
        let correction_1 = correction_as_burn(self.beta_1, time);
        let correction_2 = correction_as_burn(self.beta_2, time);
        let root = correction_2.sqrt();
        WithMoments {
            factors: Factors::as_burn(self.beta_1, self.beta_2).in_micro_batch(micro_batch),
            update: AdamUpdate {
                lr,
                decay: self.decay.in_micro_batch(micro_batch),
                factor: (root / correction_1).into(),
                epsilon: (self.epsilon * root).into(),
            },
        }
    }

    fn kept_shares(&self) -> [(&'static str, f64); 2] {
        [
            ("Adam: beta_1", self.beta_1.into()),
            ("Adam: beta_2", self.beta_2.into()),
        ]
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightDecay {
    penalty: f32,
}

/// The step of [`Adam`].
#[derive(Clone, Copy, Debug)]
pub struct AdamUpdate {
    lr: f64,
    decay: CoupledDecay,
    factor: f64,
    epsilon: f64,
}

impl Update for AdamUpdate {
    #[inline(always)]
    fn gradient<T: Number>(&self, weight: &T, grad: T) -> T {
        self.decay.gradient(weight, grad)
    }

    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let update = moment_1.mul_scalar(self.factor) / moment_2.sqrt().add_scalar(self.epsilon);
        weight - update.mul_scalar(self.lr)
    }
}

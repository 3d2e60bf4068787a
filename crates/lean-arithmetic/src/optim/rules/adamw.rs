//! AdamW.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    super::{MicroBatch, Number, configuration},
    AdaptiveRule, Factors, Update, WithMoments, correction_as_burn,
};
use crate::settings::{amount, expect_in_range, share};

/// AdamW, as Burn has it.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Decay rate of the first moment.
    pub beta_1: f32,
    /// Decay rate of the second moment.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Whether a weight decays only where that does not oppose the step:
    /// <https://arxiv.org/abs/2510.12402>.
    pub cautious: bool,
    /// The learning rate at which decay is `weight_decay`, if decay is decoupled from the learning
    /// rate.
    pub max_lr: Option<f64>,
}

impl AdamW {
    /// AdamW as a configuration of Burn has it, whether it is AMSGrad, and its clipping.
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
            weight_decay: f32,
            cautious_weight_decay: bool,
            amsgrad: bool,
            grad_clipping: Option<C>,
        }
        let config: Configuration<C> = configuration(config);
        let adamw = Self {
            beta_1: config.beta_1,
            beta_2: config.beta_2,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay,
            cautious: config.cautious_weight_decay,
            max_lr: None,
        };
        (adamw.checked(), config.amsgrad, config.grad_clipping)
    }

    /// Decays by `weight_decay * lr / max_lr` in place of `weight_decay * lr`.
    ///
    /// # Panics
    ///
    /// If `max_lr` is not above zero, or not finite.
    pub fn decouple_lr(&mut self, max_lr: f64) {
        assert!(
            max_lr > 0.0 && max_lr.is_finite(),
            "AdamW: max_lr is {max_lr}, which is out of range: weight decay is divided by it"
        );
        self.max_lr = Some(max_lr);
    }

    /// Checks the settings.
    ///
    /// # Panics
    ///
    /// If a setting is out of range. The message has its name and its value.
    pub fn checked(self) -> Self {
        expect_in_range(
            "AdamW",
            &[
                share("beta_1", self.beta_1.into()),
                share("beta_2", self.beta_2.into()),
                amount("epsilon", self.epsilon.into()),
                amount("weight_decay", self.weight_decay.into()),
            ],
        );
        self
    }

    fn decay_rate(&self, lr: f64) -> f64 {
        match self.max_lr {
            Some(max_lr) => lr / max_lr * f64::from(self.weight_decay),
            None => lr * f64::from(self.weight_decay),
        }
    }
}

impl AdaptiveRule for AdamW {
    type Update = AdamWUpdate;

    fn rule(&self, lr: f64, time: usize, micro_batch: MicroBatch) -> WithMoments<AdamWUpdate> {
        let correction_1 = correction_as_burn(self.beta_1, time);
        let correction_2 = correction_as_burn(self.beta_2, time);
        let decay_rate = self.decay_rate(lr);
        WithMoments {
            factors: Factors::as_burn(self.beta_1, self.beta_2).in_micro_batch(micro_batch),
            update: AdamWUpdate {
                lr,
                decay: match self.cautious && decay_rate != 0.0 {
                    true => Decay::Cautious(decay_rate),
                    // Without decay the factor is one, which changes no bit.
                    false => Decay::Factor(1.0 - decay_rate),
                },
                correction_1: correction_1.into(),
                correction_2: correction_2.into(),
                epsilon: self.epsilon.into(),
            },
        }
    }

    fn kept_shares(&self) -> [(&'static str, f64); 2] {
        [
            ("AdamW: beta_1", self.beta_1.into()),
            ("AdamW: beta_2", self.beta_2.into()),
        ]
    }
}

/// The step of [`AdamW`].
#[derive(Clone, Copy, Debug)]
pub struct AdamWUpdate {
    lr: f64,
    decay: Decay,
    correction_1: f64,
    correction_2: f64,
    epsilon: f64,
}

#[derive(Clone, Copy, Debug)]
enum Decay {
    /// Multiplies the weight by this factor.
    Factor(f64),
    /// Subtracts this share of the weight where that does not oppose the step.
    Cautious(f64),
}

impl Update for AdamWUpdate {
    #[inline(always)]
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T {
        let decayed = match self.decay {
            Decay::Factor(factor) => weight.mul_scalar(factor),
            Decay::Cautious(rate) => {
                let decay = weight.clone().mul_scalar(rate);
                let decay = decay.zero_where_signs_differ(weight.clone(), moment_1.clone());
                weight - decay
            }
        };
        let root = moment_2.div_scalar(self.correction_2).sqrt();
        let update = moment_1.div_scalar(self.correction_1) / root.add_scalar(self.epsilon);
        decayed - update.mul_scalar(self.lr)
    }
}

//! AdamW.

use burn::optim::{AdamWConfig, LearningRate};
use lean_arithmetic::optim::rules;

use super::adaptive::{Adaptive, AdaptiveState};
use super::settings::Settings;
use super::{EightBitMoments, InOnePass};

/// Burn's [`AdamW`](burn::optim::AdamW) in one pass; made by [`InOnePass::in_one_pass`].
pub type AdamW = Adaptive<rules::AdamW>;

/// State of [`AdamW`], saved as Burn saves it.
pub type AdamWState<const D: usize> = AdaptiveState<D>;

impl AdamW {
    /// Decays by `weight_decay * lr / max_lr` in place of `weight_decay * lr`: weight decay that
    /// does not depend on the learning rate, but for its schedule. `max_lr` is the highest rate of
    /// the schedule.
    ///
    /// The option `decouple_lr` of optimi, after Loshchilov and Hutter (2019), section 4.
    ///
    /// # Panics
    ///
    /// If `max_lr` is not above zero, or not finite.
    pub fn with_decoupled_lr(mut self, max_lr: LearningRate) -> Self {
        self.rule.decouple_lr(max_lr);
        self.settings.is_burns = false;
        self
    }
}

impl InOnePass for AdamWConfig {
    type Optimizer = AdamW;

    fn in_one_pass(&self) -> AdamW {
        let (rule, amsgrad, clipping) = rules::AdamW::of_burn(self);
        Adaptive {
            rule,
            amsgrad,
            settings: Settings::as_burn(clipping),
        }
    }
}

impl EightBitMoments for AdamW {}

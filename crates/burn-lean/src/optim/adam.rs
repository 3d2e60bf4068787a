//! Adam.

use burn::optim::AdamConfig;
use lean_arithmetic::optim::rules;

use super::adaptive::{Adaptive, AdaptiveState};
use super::settings::Settings;
use super::{EightBitMoments, InOnePass};

/// Burn's [`Adam`](burn::optim::Adam) in one pass; made by [`InOnePass::in_one_pass`].
pub type Adam = Adaptive<rules::Adam>;

/// State of [`Adam`], saved as Burn saves it.
pub type AdamState<const D: usize> = AdaptiveState<D>;

impl InOnePass for AdamConfig {
    type Optimizer = Adam;

    fn in_one_pass(&self) -> Adam {
        let (rule, amsgrad, clipping) = rules::Adam::of_burn(self);
        Adaptive {
            rule,
            amsgrad,
            settings: Settings::as_burn(clipping),
        }
    }
}

impl EightBitMoments for Adam {}

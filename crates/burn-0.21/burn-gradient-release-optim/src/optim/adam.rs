//! Adam.

use burn::optim::AdamConfig;
use lean_arithmetic::optim::rules;

use super::{
    EightBitMoments, InOnePass,
    adaptive::{Adaptive, AdaptiveState},
};
use crate::settings::Settings;

/// Burn's [`Adam`](burn::optim::Adam) in one pass; made by [`InOnePass::in_one_pass`].
pub type Adam = Adaptive<rules::Adam>;

/// State of [`Adam`], saved as Burn saves it.
pub type AdamState<B> = AdaptiveState<B>;

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

//! Dynamic loss scaling.

use serde::{Deserialize, Serialize};

use crate::OutOfRange;
use crate::exact::Exact;
use crate::settings::first_out_of_range;

/// Settings of dynamic loss scaling ([Micikevicius et al.,
/// 2018](https://arxiv.org/abs/1710.03740)), by the rule of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug)]
pub struct LossScaleRule {
    /// The first scale.
    pub init_scale: f64,
    /// Factor by which the scale rises.
    pub growth_factor: f64,
    /// Factor by which the scale falls.
    pub backoff_factor: f64,
    /// Steps without overflow before the scale rises.
    pub growth_interval: usize,
}

impl LossScaleRule {
    /// The scale falls no lower. A gradient that overflows here is not finite at any scale: even in
    /// `f16` it is above 1e12.
    pub const LEAST: f64 = 1.0 / (1 << 24) as f64;

    /// The scale rises no higher: the largest power of two whose inverse has all bits in 32 bits.
    pub const MOST: f64 = (1_u128 << 126) as f64;

    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        let is_fraction = self.backoff_factor > 0.0 && self.backoff_factor < 1.0;
        let settings = [
            (
                "init_scale",
                self.init_scale,
                self.init_scale > Self::LEAST && self.init_scale <= Self::MOST,
            ),
            (
                "growth_factor",
                self.growth_factor,
                self.growth_factor >= 1.0,
            ),
            ("backoff_factor", self.backoff_factor, is_fraction),
            (
                "growth_interval",
                self.growth_interval as f64,
                self.growth_interval > 0,
            ),
        ];
        first_out_of_range(
            &settings.map(|(name, value, is_fine)| (name, value, is_fine && value.is_finite())),
        )
    }
}

/// The scale, and for how long it has been that.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    scale: Exact<f64>,
    steps_since_change: usize,
}

impl LossScale {
    /// The first scale.
    pub fn new(rule: &LossScaleRule) -> Self {
        Self {
            scale: Exact(rule.init_scale),
            steps_since_change: 0,
        }
    }

    /// The scale as it is now.
    pub fn current(&self) -> f64 {
        self.scale.0
    }

    /// Factor that takes the scale off a gradient.
    pub fn inverse(&self) -> f64 {
        1.0 / self.scale.0
    }

    /// Whether the scale has fallen as low as it can, and a gradient has overflowed all the same. No
    /// scale helps then.
    pub fn is_exhausted(&self) -> bool {
        self.scale.0 <= LossScaleRule::LEAST && self.steps_since_change == 0
    }

    /// Ends a step.
    pub fn update(&mut self, rule: &LossScaleRule, has_overflown: bool) {
        self.steps_since_change += 1;
        if has_overflown {
            self.scale.0 = (self.scale.0 * rule.backoff_factor).max(LossScaleRule::LEAST);
            self.steps_since_change = 0;
        } else if self.steps_since_change == rule.growth_interval {
            self.scale.0 = (self.scale.0 * rule.growth_factor).min(LossScaleRule::MOST);
            self.steps_since_change = 0;
        }
    }
}

//! Rules of clipping that remember the norms of earlier steps.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::OutOfRange;
use crate::exact::Exact;
use crate::norm::ratio;
use crate::settings::first_out_of_range;

/// Settings of clipping by the global norm.
#[derive(Clone, Copy, Debug)]
pub struct GlobalNormRule {
    /// The largest norm that is stepped with.
    pub max_norm: f64,
}

impl GlobalNormRule {
    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        first_out_of_range(&[("max_norm", self.max_norm, self.max_norm > 0.0)])
    }
}

/// Settings of adaptive gradient clipping ([arXiv 2102.06171](https://arxiv.org/abs/2102.06171)).
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveRule {
    /// The largest ratio of the norms of gradient and weights.
    pub clip_factor: f64,
    /// Lower bound of the norm of weights.
    pub eps: f64,
}

impl AdaptiveRule {
    /// Lower bound of the norm of a gradient that the allowed norm is divided by.
    pub const MIN_GRAD_NORM: f64 = 1e-6;

    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        first_out_of_range(&[
            ("clip_factor", self.clip_factor, self.clip_factor > 0.0),
            ("eps", self.eps, self.eps > 0.0),
        ])
    }

    /// The dimensions of one unit in a tensor of this rank: a column of a matrix `[in, out]`, a
    /// slice along the first dimension of a tensor of more dimensions, the whole of a vector.
    pub fn dims_of_unit(rank: usize) -> std::ops::Range<usize> {
        match rank {
            0..=2 => 0..rank.min(1),
            _ => 1..rank,
        }
    }
}

/// Settings of ZClip ([arXiv 2504.02507](https://arxiv.org/abs/2504.02507)).
#[derive(Clone, Copy, Debug)]
pub struct ZClipRule {
    /// Share of the past in the moving averages.
    pub alpha: f64,
    /// Number of standard deviations above the mean from which a norm is a spike.
    pub z_threshold: f64,
    /// Steps before the first is scaled.
    pub warm_up: usize,
}

impl ZClipRule {
    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        first_out_of_range(&[
            ("alpha", self.alpha, (0.0..=1.0).contains(&self.alpha)),
            ("z_threshold", self.z_threshold, self.z_threshold > 0.0),
            ("warm_up", self.warm_up as f64, self.warm_up > 0),
        ])
    }
}

/// The moving averages of ZClip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZClip {
    warm_up: Vec<Exact>,
    mean: Exact,
    variance: Exact,
}

impl ZClip {
    /// The norm that a gradient of `norm` is scaled to.
    pub fn target(&self, rule: &ZClipRule, norm: f64) -> f64 {
        if self.warm_up.len() < rule.warm_up {
            return norm;
        }
        let std = self.variance.0.sqrt();
        let z = (norm - self.mean.0) / (std + 1e-6);
        if z > rule.z_threshold {
            self.mean.0 + rule.z_threshold * rule.z_threshold / z * std
        } else {
            norm
        }
    }

    /// Tells the averages the norm that a step was taken with. One that is not finite is left out.
    pub fn observe(&mut self, rule: &ZClipRule, norm: f64) {
        if !norm.is_finite() {
            return;
        }
        if self.warm_up.len() < rule.warm_up {
            self.warm_up.push(Exact(norm));
            let norms = || self.warm_up.iter().map(|norm| norm.0);
            let count = self.warm_up.len() as f64;
            let mean = norms().sum::<f64>() / count;
            let squares = norms().map(|norm| (norm - mean).powi(2));
            self.variance = Exact(squares.sum::<f64>() / count);
            self.mean = Exact(mean);
            return;
        }
        let mean = rule.alpha * self.mean.0 + (1.0 - rule.alpha) * norm;
        let deviation = (norm - mean).powi(2);
        let variance = rule.alpha * self.variance.0 + (1.0 - rule.alpha) * deviation;
        (self.mean, self.variance) = (Exact(mean), Exact(variance));
    }
}

/// Settings of AutoClip ([arXiv 2007.14469](https://arxiv.org/abs/2007.14469)).
#[derive(Clone, Copy, Debug)]
pub struct AutoClipRule {
    /// Percentile, from 0 to 100.
    pub percentile: f64,
    /// Number of recent norms kept for each tensor.
    pub history: usize,
}

impl AutoClipRule {
    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        let is_percentile = (0.0..=100.0).contains(&self.percentile);
        first_out_of_range(&[
            ("percentile", self.percentile, is_percentile),
            ("history", self.history as f64, self.history > 0),
        ])
    }
}

/// The bits of the norms that the gradient of each parameter has had, by the parameter's id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AutoClip(HashMap<u64, VecDeque<u32>>);

impl AutoClip {
    /// Factor for a gradient of this norm, which joins the history unless it is NaN or zero. A gradient
    /// of zeros, as of a block that a step leaves out, says nothing about the others.
    pub fn coefficient(&mut self, rule: &AutoClipRule, param: u64, norm: f64) -> f64 {
        let kept = norm as f32;
        if kept.is_nan() || kept == 0.0 {
            return 1.0;
        }
        let history = self.0.entry(param).or_default();
        // A record may be of a longer history.
        while history.len() >= rule.history {
            history.pop_front();
        }
        history.push_back(kept.to_bits());
        let mut norms: Vec<f32> = history.iter().copied().map(f32::from_bits).collect();
        let target = percentile(&mut norms, rule.percentile);
        // The norm as it is kept may be more than itself: the largest of all is not scaled.
        if target < f64::from(kept) {
            ratio(target, norm)
        } else {
            1.0
        }
    }
}

/// The percentile of values, interpolated linearly as NumPy does. Reorders them, without sorting
/// all.
fn percentile(values: &mut [f32], percentile: f64) -> f64 {
    let place = percentile / 100.0 * (values.len() - 1) as f64;
    let (_, below, rest) = values.select_nth_unstable_by(place.floor() as usize, f32::total_cmp);
    let below = f64::from(*below);
    // Infinities have no difference.
    if place.fract() == 0.0 || below.is_infinite() {
        return below;
    }
    let above = rest.iter().copied().min_by(f32::total_cmp);
    let above = f64::from(above.expect("a place between two values is below the last one"));
    below + (above - below) * place.fract()
}

/// Makes the configurations of the rules for a version of Burn, whose `Config` they derive.
/// `$last_layer` says what becomes of the last layer of a model.
#[macro_export]
macro_rules! clipping_configurations {
    ($last_layer:literal) => {
        /// A rule that clips the gradients of a model by their norms, named as in its paper.
        ///
        /// Burn's own [`GradientClipping`](burn::grad_clipping::GradientClipping) clips each gradient
        /// by itself, and runs after this one if both are set.
        #[derive(burn::config::Config, Debug, Copy, PartialEq)]
        #[non_exhaustive]
        pub enum NormClipping {
            /// By the norm of all gradients together, as PyTorch's `clip_grad_norm_` does: every
            /// gradient is multiplied by `max_norm / (norm + 1e-6)` if that is less than one. It is
            /// exact, and so needs [two backward passes](crate::ReleaseOptimizer::two_passes): the norm
            /// is known only after every gradient.
            GlobalNorm {
                /// The largest norm after clipping.
                max_norm: f64,
            },
            /// By the distance of the norm of all gradients from those of earlier steps. Needs two
            /// backward passes.
            ZClip(ZClipConfig),
            /// Unit by unit, by the norm of the unit's weights. In one pass.
            Adaptive(AdaptiveClippingConfig),
            /// Each gradient by a quantile of its norms so far. In one pass.
            AutoClip(AutoClipConfig),
        }

        /// ZClip: adaptive spike mitigation for pre-training
        /// ([arXiv 2504.02507](https://arxiv.org/abs/2504.02507)).
        ///
        /// Keeps a moving mean and variance of the global norm `g`. If `z = (g - mean) / std` is above
        /// the threshold, the gradients are scaled to the norm `mean + z_threshold² / z · std`, which
        /// enters the moving averages in place of `g`. Steps of the warm-up only collect their norms.
        #[derive(burn::config::Config, Debug, Copy, PartialEq)]
        pub struct ZClipConfig {
            /// Decay rate of the moving averages.
            #[config(default = 0.97)]
            pub alpha: f64,
            /// Number of standard deviations above the mean from which a norm is a spike.
            #[config(default = 2.5)]
            pub z_threshold: f64,
            /// Number of warm-up steps.
            #[config(default = 25)]
            pub warm_up: usize,
        }

        /// Adaptive gradient clipping, AGC ([arXiv 2102.06171](https://arxiv.org/abs/2102.06171)).
        ///
        /// The gradient of a unit is scaled down if its norm is more than `clip_factor` times the norm
        /// of the unit's weights. A unit has the weights of one output: a column of a matrix, since
        /// Burn's `Linear` is `[in, out]`; a slice along the first dimension of a tensor of higher
        /// rank, such as that of a convolution (`[out, in, ..]`); a vector is one unit. The paper
        /// leaves out the last
        #[doc = concat!(" layer: ", $last_layer, ".")]
        #[derive(burn::config::Config, Debug, Copy, PartialEq)]
        pub struct AdaptiveClippingConfig {
            /// The largest ratio of the gradient's norm to that of the weights.
            #[config(default = 0.01)]
            pub clip_factor: f64,
            /// Lower bound of the norm of weights, so that weights of zero can learn.
            #[config(default = 1e-3)]
            pub eps: f64,
        }

        /// AutoClip ([arXiv 2007.14469](https://arxiv.org/abs/2007.14469)), for each tensor by itself.
        ///
        /// A gradient is scaled down to the given percentile of the norms of this tensor's gradients
        /// so far, including this one. Gradients of zeros do not count. Each norm is read when its
        /// gradient is complete: on a GPU this waits for the device.
        #[derive(burn::config::Config, Debug, Copy, PartialEq)]
        pub struct AutoClipConfig {
            /// Percentile, from 0 to 100.
            #[config(default = 10.0)]
            pub percentile: f64,
            /// Number of recent norms kept for each tensor.
            #[config(default = 10_000)]
            pub history: usize,
        }

        impl NormClipping {
            /// Whether the rule needs all gradients before the first step.
            pub fn needs_two_passes(&self) -> bool {
                matches!(self, Self::GlobalNorm { .. } | Self::ZClip(_))
            }

            /// The first setting that is out of range.
            pub(super) fn out_of_range(&self) -> Option<$crate::OutOfRange> {
                match *self {
                    Self::GlobalNorm { max_norm } => {
                        $crate::clipping::GlobalNormRule { max_norm }.out_of_range()
                    }
                    Self::ZClip(config) => config.rule().out_of_range(),
                    Self::Adaptive(config) => config.rule().out_of_range(),
                    Self::AutoClip(config) => config.rule().out_of_range(),
                }
            }
        }

        impl ZClipConfig {
            pub(super) fn rule(&self) -> $crate::clipping::ZClipRule {
                $crate::clipping::ZClipRule {
                    alpha: self.alpha,
                    z_threshold: self.z_threshold,
                    warm_up: self.warm_up,
                }
            }
        }

        impl AdaptiveClippingConfig {
            fn rule(&self) -> $crate::clipping::AdaptiveRule {
                $crate::clipping::AdaptiveRule {
                    clip_factor: self.clip_factor,
                    eps: self.eps,
                }
            }
        }

        impl AutoClipConfig {
            pub(super) fn rule(&self) -> $crate::clipping::AutoClipRule {
                $crate::clipping::AutoClipRule {
                    percentile: self.percentile,
                    history: self.history,
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: AutoClipRule = AutoClipRule {
        percentile: 50.0,
        history: 3,
    };

    #[test]
    fn infinite_norms_survive_a_record() {
        let mut auto = AutoClip::default();
        for norm in [1e20, f64::INFINITY, 1e-20] {
            auto.coefficient(&AUTO, 7, norm);
        }
        let mut zclip = ZClip::default();
        let rule = ZClipRule {
            alpha: 0.9,
            z_threshold: 2.0,
            warm_up: 2,
        };
        for norm in [0.1, 1e300, 1e20] {
            zclip.observe(&rule, norm);
        }
        let saved = serde_json::to_string(&(&auto, &zclip)).unwrap();
        let read: (AutoClip, ZClip) = serde_json::from_str(&saved).unwrap();
        assert_eq!(read, (auto, zclip));
    }

    #[test]
    fn a_norm_that_is_no_number_is_not_remembered() {
        let mut auto = AutoClip::default();
        let mut seen = auto.clone();
        for norm in [1.0, 3.0] {
            auto.coefficient(&AUTO, 7, norm);
            seen.coefficient(&AUTO, 7, norm);
            assert_eq!(seen.coefficient(&AUTO, 7, f64::NAN), 1.0);
        }
        assert_eq!(auto, seen);
    }

    /// As of a block that is left out in most steps: its other gradients are as large as they were.
    #[test]
    fn a_norm_of_zero_is_not_remembered() {
        let rule = AutoClipRule {
            percentile: 10.0,
            history: 100,
        };
        let mut auto = AutoClip::default();
        for _ in 0..20 {
            assert_eq!(auto.coefficient(&rule, 7, 0.0), 1.0);
        }
        for _ in 0..10 {
            assert_eq!(auto.coefficient(&rule, 7, 1.0), 1.0);
        }
        assert_eq!(auto.coefficient(&rule, 7, 0.0), 1.0);
        assert_eq!(auto.coefficient(&rule, 7, 2.0), 0.5);
    }

    /// Of any size, in 64 bits too: the largest norm is its own 100th percentile.
    #[test]
    fn a_norm_at_its_percentile_is_not_scaled() {
        let largest = AutoClipRule {
            percentile: 100.0,
            ..AUTO
        };
        for norm in [1e-30, 1e-8, 0.1, 1.0, 0.7_f64.sqrt(), 1e30] {
            for rule in [AUTO, largest] {
                let mut auto = AutoClip::default();
                assert_eq!(auto.coefficient(&rule, 7, norm), 1.0);
                assert_eq!(auto.coefficient(&rule, 7, norm), 1.0);
            }
            let mut auto = AutoClip::default();
            auto.coefficient(&largest, 7, norm);
            assert_eq!(auto.coefficient(&largest, 7, 2.0 * norm), 1.0);
        }
    }

    #[test]
    fn a_history_is_cut_to_its_length() {
        let longer = AutoClipRule { history: 5, ..AUTO };
        let mut auto = AutoClip::default();
        for norm in [9.0, 9.0, 9.0, 1.0, 2.0] {
            auto.coefficient(&longer, 7, norm);
        }
        // Of 1, 2 and 4 the median is 2.
        assert_eq!(auto.coefficient(&AUTO, 7, 4.0), 0.5);
    }

    #[test]
    fn a_percentile_between_infinities_is_one() {
        let mut norms = [f32::INFINITY, 1.0, f32::INFINITY];
        assert_eq!(percentile(&mut norms, 100.0), f64::INFINITY);
        assert_eq!(percentile(&mut norms, 0.0), 1.0);
        assert_eq!(percentile(&mut norms, 25.0), f64::INFINITY);
    }

    /// Values of `numpy.percentile`, of numbers in no order.
    #[test]
    fn percentiles_are_those_of_numpy() {
        let norms = [7.0, 1.0, 4.0, 2.0, 11.0];
        for (wanted, value) in [
            (0.0, 1.0),
            (10.0, 1.4),
            (25.0, 2.0),
            (50.0, 4.0),
            (90.0, 9.4),
            (100.0, 11.0),
        ] {
            let found = percentile(&mut norms.clone(), wanted);
            assert!((found - value).abs() < 1e-12, "{wanted}: {found}");
        }
    }
}

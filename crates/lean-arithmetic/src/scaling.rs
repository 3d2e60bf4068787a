//! Dynamic loss scaling.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    scale: Exact,
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
        } else if self.steps_since_change >= rule.growth_interval && rule.growth_factor > 1.0 {
            self.scale.0 = (self.scale.0 * rule.growth_factor).min(LossScaleRule::MOST);
            self.steps_since_change = 0;
        }
    }
}

/// A scale that optimizers share. Clones share it, too.
///
/// It changes when each of its optimizers has ended a step, or one of them its second: once for all
/// of them, as with PyTorch, and it falls if a gradient of any has overflowed. An optimizer that did
/// not step is no longer awaited until it steps again, nor is a copy before its first step. An
/// overflow at a scale that has fallen since is the same overflow: the scale does not fall for it.
#[derive(Clone, Debug)]
pub struct SharedLossScale {
    rule: LossScaleRule,
    state: Arc<Mutex<State>>,
    /// The optimizer that holds this clone. Dropped with it.
    optimizer: Option<Arc<()>>,
}

#[derive(Debug)]
struct State {
    scale: LossScale,
    optimizers: Vec<Member>,
    /// Whether a gradient has overflowed since the scale was updated.
    has_overflown: bool,
}

/// An optimizer of a scale.
#[derive(Debug)]
struct Member {
    optimizer: Weak<()>,
    /// The scale of the last loss since the optimizer's last step, if one was scaled.
    asked: Option<f64>,
    /// Whether a loss was scaled for the pass that comes.
    is_asked: bool,
    /// Whether the losses since its last step had several scales.
    is_mixed: bool,
    /// Whether it has ended a step since the scale was updated.
    has_stepped: bool,
    /// Whether the scale waits for its step.
    is_awaited: bool,
    /// Whether the scale was updated since its last loss was scaled: the step comes after the update
    /// that it belongs to.
    is_late: bool,
}

impl Member {
    fn new(optimizer: Weak<()>, is_awaited: bool) -> Self {
        Self {
            optimizer,
            asked: None,
            is_asked: false,
            is_mixed: false,
            has_stepped: false,
            is_awaited,
            is_late: false,
        }
    }
}

impl State {
    /// The optimizers that are still there.
    fn optimizers(&mut self) -> &mut [Member] {
        self.optimizers
            .retain(|member| member.optimizer.strong_count() > 0);
        &mut self.optimizers
    }

    fn member(&mut self, optimizer: &Option<Arc<()>>) -> Option<&mut Member> {
        let optimizer = Arc::downgrade(optimizer.as_ref()?);
        let mut optimizers = self.optimizers.iter_mut();
        optimizers.find(|member| member.optimizer.ptr_eq(&optimizer))
    }

    fn update(&mut self, rule: &LossScaleRule) {
        self.scale.update(rule, self.has_overflown);
        self.has_overflown = false;
        for member in self.optimizers() {
            member.is_awaited &= member.has_stepped;
            (member.has_stepped, member.is_late) = (false, member.asked.is_some());
        }
    }
}

impl SharedLossScale {
    /// The first scale, without optimizers.
    pub fn new(rule: LossScaleRule) -> Self {
        Self {
            rule,
            state: Arc::new(Mutex::new(State {
                scale: LossScale::new(&rule),
                optimizers: Vec::new(),
                has_overflown: false,
            })),
            optimizer: None,
        }
    }

    /// Ignores poisoning: each change of the state is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scale, for a loss of all its optimizers.
    pub fn ask(&self) -> f64 {
        let mut state = self.state();
        let scale = state.scale.current();
        for member in state.optimizers() {
            member.is_mixed |= member.asked.is_some_and(|asked| asked != scale);
            member.asked = Some(scale);
            (member.is_asked, member.is_late) = (true, false);
        }
        scale
    }

    /// The scale as it is now.
    pub fn current(&self) -> f64 {
        self.state().scale.current()
    }

    /// The scale as an optimizer holds it. Clones are held by the same optimizer.
    pub fn for_optimizer(self) -> Self {
        self.held(true)
    }

    /// The scale as a copy of an optimizer holds it. The copy may never be used: it is awaited from its
    /// first step on.
    pub fn for_copy(self) -> Self {
        self.held(false)
    }

    fn held(self, is_awaited: bool) -> Self {
        let optimizer = Arc::new(());
        let member = Member::new(Arc::downgrade(&optimizer), is_awaited);
        self.state().optimizers.push(member);
        Self {
            optimizer: Some(optimizer),
            ..self
        }
    }

    /// Factor that takes the scale off a gradient of this optimizer.
    pub fn inverse(&self) -> f64 {
        let mut state = self.state();
        let asked = state
            .member(&self.optimizer)
            .and_then(|member| member.asked);
        1.0 / asked.unwrap_or_else(|| state.scale.current())
    }

    /// Whether a loss was scaled since the optimizer's last pass.
    pub fn is_asked(&self) -> bool {
        let mut state = self.state();
        let member = state.member(&self.optimizer);
        member.is_some_and(|member| member.is_asked)
    }

    /// Whether a loss was scaled since the optimizer's last step.
    pub fn has_scale(&self) -> bool {
        let mut state = self.state();
        let member = state.member(&self.optimizer);
        member.is_some_and(|member| member.asked.is_some())
    }

    /// Whether the losses since the optimizer's last step had several scales, because another
    /// optimizer has stepped more often. Sums of their gradients cannot be unscaled.
    pub fn is_mixed(&self) -> bool {
        let mut state = self.state();
        let member = state.member(&self.optimizer);
        member.is_some_and(|member| member.is_mixed)
    }

    /// Begins a window of micro-batches with the loss that was scaled last.
    pub fn begin_window(&self) {
        if let Some(member) = self.state().member(&self.optimizer) {
            member.is_mixed = false;
        }
    }

    /// Begins another pass of the same step, whose loss must be scaled, too.
    pub fn begin_pass(&self) {
        if let Some(member) = self.state().member(&self.optimizer) {
            member.is_asked = false;
        }
    }

    /// The first setting that is out of range.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        self.rule.out_of_range()
    }

    /// The scale if all further steps would be skipped: see [`LossScale::is_exhausted`].
    pub fn exhausted(&self) -> Option<f64> {
        let scale = self.state().scale;
        scale.is_exhausted().then(|| scale.current())
    }

    /// Ends a step of an optimizer. Returns its scale.
    pub fn update(&self, has_overflown: bool) -> f64 {
        let mut state = self.state();
        let current = state.scale.current();
        let member = state.member(&self.optimizer);
        if member.is_some_and(|member| member.has_stepped) {
            state.update(&self.rule);
            if let Some(member) = state.member(&self.optimizer) {
                // The step that ends is the first of the next turn.
                member.is_late = false;
            }
        }
        let member = state.member(&self.optimizer);
        let asked = member.and_then(|member| {
            member.is_awaited = true;
            member.has_stepped = !member.is_late;
            (member.is_asked, member.is_mixed) = (false, false);
            member.asked.take()
        });
        let used = asked.unwrap_or(current);
        let has_fallen = state.scale.current() < used;
        state.has_overflown |= has_overflown && !has_fallen;
        let mut awaited = state.optimizers().iter().filter(|member| member.is_awaited);
        if awaited.all(|member| member.has_stepped) {
            state.update(&self.rule);
        }
        used
    }

    /// The state to save.
    pub fn to_record(&self) -> LossScale {
        self.state().scale
    }

    /// Loads a saved state. This optimizer forgets the losses since its last step. Others may be in a
    /// window of micro-batches, and know the scale of these.
    pub fn load_record(&self, scale: LossScale) {
        let mut state = self.state();
        (state.scale, state.has_overflown) = (scale, false);
        for member in state.optimizers() {
            member.has_stepped = false;
        }
        if let Some(member) = state.member(&self.optimizer) {
            *member = Member::new(member.optimizer.clone(), member.is_awaited);
        }
    }
}

/// Makes the configuration of a `LossScaler` for a version of Burn, whose `Config` it derives. `$more` is
/// what this version adds to the description.
#[macro_export]
macro_rules! loss_scaler_configuration {
    ($(#[$more:meta])*) => {
        /// Dynamic loss scaling for training in fp16, by the rule and with the defaults of PyTorch's
        /// `GradScaler` ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)).
        ///
        /// Gradients in fp16 vanish below `6e-8`. Scaling the loss up scales its gradients up, and the
        /// optimizer divides them by the scale, in 32 bits, before it clips and steps. If one has
        /// overflowed, the step is skipped and the scale falls; after `growth_interval` steps without an
        /// overflow, it rises. It stays between 2^-24 and 2^126; where a gradient overflows at the least
        /// scale, steps are refused from then on. bf16 has the range of fp32 and needs no scaling.
        $(#[$more])*
        #[derive(burn::config::Config, Debug, Copy, PartialEq)]
        pub struct LossScalerConfig {
            /// The first scale.
            #[config(default = 65536.0)]
            pub init_scale: f64,
            /// Factor by which the scale rises.
            #[config(default = 2.0)]
            pub growth_factor: f64,
            /// Factor by which the scale falls.
            #[config(default = 0.5)]
            pub backoff_factor: f64,
            /// Steps without overflow before the scale rises.
            #[config(default = 2000)]
            pub growth_interval: usize,
        }

        impl LossScalerConfig {
            /// A scaler at its first scale.
            pub fn init(&self) -> LossScaler {
                LossScaler($crate::scaling::SharedLossScale::new($crate::scaling::LossScaleRule {
                    init_scale: self.init_scale,
                    growth_factor: self.growth_factor,
                    backoff_factor: self.backoff_factor,
                    growth_interval: self.growth_interval,
                }))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Good steps at the least scale are no overflow, though the scale cannot rise.
    #[test]
    fn a_scale_that_never_rises_is_not_exhausted_by_good_steps() {
        let rule = LossScaleRule {
            init_scale: 2.0 * LossScaleRule::LEAST,
            growth_factor: 1.0,
            backoff_factor: 0.5,
            growth_interval: 2,
        };
        let mut scale = LossScale::new(&rule);
        scale.update(&rule, true);
        assert!(scale.is_exhausted());
        for _ in 0..2 {
            scale.update(&rule, false);
            assert!(!scale.is_exhausted());
        }
    }

    /// Nothing of the steps before the record was loaded: no scale, and no overflow. The other
    /// optimizer is in a window of micro-batches.
    #[test]
    fn a_record_loaded_into_a_shared_scale() {
        let rule = LossScaleRule {
            init_scale: 4.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 10,
        };
        let scale = SharedLossScale::new(rule);
        let [first, second] = [(); 2].map(|()| scale.clone().for_optimizer());
        scale.ask();
        first.update(true);
        scale.ask();
        first.load_record(LossScale::new(&LossScaleRule {
            init_scale: 8.0,
            ..rule
        }));
        assert!(!first.is_asked() && second.is_asked());
        assert_eq!(
            [&first, &second].map(SharedLossScale::inverse),
            [0.125, 0.25]
        );
        scale.ask();
        assert!(!first.is_mixed() && second.is_mixed());
        for optimizer in [&first, &second] {
            assert_eq!(optimizer.update(false), 8.0);
        }
        assert_eq!(scale.current(), 8.0);
    }

    fn of_1024() -> SharedLossScale {
        SharedLossScale::new(LossScaleRule {
            init_scale: 1024.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 3,
        })
    }

    /// One that does not step costs an overflow a step more, once, and never a lower scale.
    #[test]
    fn an_idle_optimizer_is_not_awaited_for_ever() {
        let scale = of_1024();
        let [first, second] = [(); 2].map(|()| scale.clone().for_optimizer());
        let step = |optimizer: &SharedLossScale, has_overflown| {
            scale.ask();
            optimizer.update(has_overflown);
            scale.current()
        };
        assert_eq!(step(&first, false), 1024.0);
        assert_eq!(step(&second, false), 1024.0);
        let overflows = [true, true, false, true, false, false, false];
        assert_eq!(
            overflows.map(|has_overflown| step(&first, has_overflown)),
            [1024.0, 512.0, 512.0, 256.0, 256.0, 256.0, 512.0]
        );
        // It is awaited again.
        assert_eq!(step(&second, true), 512.0);
        assert_eq!(step(&first, false), 256.0);
    }

    /// A copy that is only kept changes nothing. One that is used steps with the others.
    #[test]
    fn a_copy_is_awaited_from_its_first_step_on() {
        let scale = of_1024();
        let optimizer = scale.clone().for_optimizer();
        let copy = optimizer.clone().for_copy();
        let mut scales = Vec::new();
        for has_overflown in [true, false, false, false] {
            scale.ask();
            optimizer.update(has_overflown);
            scales.push(scale.current());
        }
        assert_eq!(scales, [512.0, 512.0, 512.0, 1024.0]);

        // Both of one loss: the overflow of both is one.
        scale.ask();
        optimizer.update(true);
        assert_eq!(scale.current(), 512.0);
        assert_eq!(copy.update(true), 1024.0);
        for expected in [256.0, 128.0] {
            let used = scale.ask();
            assert_eq!(optimizer.update(false), used);
            assert_eq!(scale.current(), used);
            assert_eq!(copy.update(true), used);
            assert_eq!(scale.current(), expected);
        }
    }

    #[test]
    fn a_record_of_a_longer_interval_rises_with_the_next_step() {
        let long = LossScaleRule {
            init_scale: 4.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 10,
        };
        let mut scale = LossScale::new(&long);
        for _ in 0..5 {
            scale.update(&long, false);
        }
        let short = LossScaleRule {
            growth_interval: 3,
            ..long
        };
        scale.update(&short, false);
        assert_eq!(scale.current(), 8.0);
    }
}

//! Loss scaling.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::Tensor;
use burn::config::Config;
use burn_lean_arithmetic::OutOfRange;
use burn_lean_arithmetic::scaling::{LossScale, LossScaleRule};

use crate::lock::lock;

/// Dynamic loss scaling for training in fp16, by the rule and with the defaults of PyTorch's
/// `GradScaler` ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)).
///
/// Gradients in fp16 vanish below `6e-8`. Scaling the loss up scales its gradients up, and the
/// optimizer divides them by the scale, in 32 bits, before it clips and steps. If one has
/// overflowed, the step is skipped and the scale falls; after `growth_interval` steps without an
/// overflow, it rises. bf16 has the range of fp32 and needs no scaling.
///
/// Keep the weights in 32 bits and cast them to fp16 in the forward pass: gradients of fp16 weights
/// are fp16, in which dividing by the scale would lose them again.
#[derive(Config, Debug, Copy, PartialEq)]
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
        let rule = LossScaleRule {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
        };
        LossScaler {
            rule,
            state: Arc::new(Mutex::new(State {
                scale: LossScale::new(&rule),
                is_asked: false,
            })),
        }
    }
}

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one for the code that computes the loss.
#[derive(Clone, Debug)]
pub struct LossScaler {
    rule: LossScaleRule,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    scale: LossScale,
    /// Whether a loss was scaled since the last step.
    is_asked: bool,
}

impl LossScaler {
    /// Ignores poisoning: each change of the state is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the scaled loss, to run backward from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        let mut state = self.state();
        state.is_asked = true;
        loss * state.scale.current()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.state().scale.current()
    }

    /// Factor that unscales a gradient.
    pub(super) fn inverse(&self) -> f64 {
        self.state().scale.inverse()
    }

    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        self.rule.out_of_range()
    }

    /// Begins another pass of the same step, whose loss must be scaled, too.
    pub(super) fn begin_pass(&self) {
        self.state().is_asked = false;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.state().is_asked
    }

    /// Ends a step. Returns its scale.
    pub(super) fn update(&self, has_overflown: bool) -> f64 {
        let mut state = self.state();
        let scale = state.scale.current();
        state.is_asked = false;
        state.scale.update(&self.rule, has_overflown);
        scale
    }

    pub(super) fn to_record(&self) -> LossScale {
        self.state().scale
    }

    pub(super) fn load_record(&self, scale: LossScale) {
        self.state().scale = scale;
    }
}

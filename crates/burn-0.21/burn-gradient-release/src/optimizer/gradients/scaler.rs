//! Loss scaling.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::{
    config::Config,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::{
    OutOfRange,
    scaling::{LossScale, LossScaleRule},
};
use serde::{Deserialize, Serialize};

use crate::util::lock::lock;

/// Dynamic loss scaling for training in fp16, by the rule and with the defaults of PyTorch's
/// `GradScaler` ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)).
///
/// Gradients in fp16 vanish below `6e-8`. Scaling the loss up scales the gradients up, and the
/// optimizer divides them by the scale before it clips and steps. If a gradient has overflown, the
/// step is skipped and the scale falls; after `growth_interval` steps without overflow, it rises.
/// bf16 has the range of fp32 and needs no scaling.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct LossScalerConfig {
    /// The first scale.
    #[config(default = 65536.0)]
    pub init_scale: f64,
    /// Factor by which the scale grows.
    #[config(default = 2.0)]
    pub growth_factor: f64,
    /// Factor by which the scale shrinks after an overflow.
    #[config(default = 0.5)]
    pub backoff_factor: f64,
    /// Steps without overflow before the scale rises.
    #[config(default = 2000)]
    pub growth_interval: usize,
}

impl LossScalerConfig {
    /// A scaler at its first scale.
    pub fn init(&self) -> LossScaler {
        LossScaler {
            config: *self,
            state: Arc::new(Mutex::new(State {
                record: LossScalerRecord(LossScale::new(&self.rule())),
                is_asked: false,
            })),
        }
    }

    fn rule(&self) -> LossScaleRule {
        LossScaleRule {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
        }
    }
}

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one to scale the loss with.
#[derive(Clone, Debug)]
pub struct LossScaler {
    config: LossScalerConfig,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    record: LossScalerRecord,
    /// Whether a loss was scaled since the last step.
    is_asked: bool,
}

/// State of a [`LossScaler`], to resume with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerRecord(LossScale);

impl LossScaler {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The loss to run backward from.
    pub fn scale<B: Backend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        let mut state = self.state();
        state.is_asked = true;
        loss * state.record.0.current()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.state().record.0.current()
    }

    /// Factor that unscales a gradient.
    pub(super) fn inverse(&self) -> f64 {
        self.state().record.0.inverse()
    }

    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        self.config.rule().out_of_range()
    }

    /// Begins another pass of the same step, whose loss must be scaled, too.
    pub(super) fn begin_pass(&self) {
        self.state().is_asked = false;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.state().is_asked
    }

    /// Ends a step.
    pub(super) fn update(&self, has_overflown: bool) {
        let mut state = self.state();
        state.is_asked = false;
        state.record.0.update(&self.config.rule(), has_overflown);
    }

    pub(super) fn to_record(&self) -> LossScalerRecord {
        self.state().record
    }

    pub(super) fn load_record(&self, record: LossScalerRecord) {
        self.state().record = record;
    }
}

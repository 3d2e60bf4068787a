//! Loss scaling.

use burn::Tensor;
use burn::config::Config;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::scaling::{LossScale, LossScaleRule, SharedLossScale};

use crate::error::ReleaseError;

/// Dynamic loss scaling for training in fp16, by the rule and with the defaults of PyTorch's
/// `GradScaler` ([Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)).
///
/// Gradients in fp16 vanish below `6e-8`. Scaling the loss up scales its gradients up, and the
/// optimizer divides them by the scale, in 32 bits, before it clips and steps. If one has
/// overflowed, the step is skipped and the scale falls; after `growth_interval` steps without an
/// overflow, it rises. It stays between 2^-24 and 2^126; where a gradient overflows at the least
/// scale, steps are refused from then on. bf16 has the range of fp32 and needs no scaling.
///
/// Keep the weights in 32 bits and cast them to fp16 in the forward pass: gradients of fp16 weights
/// are fp16, in which dividing by the scale would lose them again. Such weights are refused
/// ([`HalfPrecision`](crate::ReleaseError::HalfPrecision)), except [with gradients in
/// f32](crate::ReleaseOptimizer::with_f32_gradients).
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
        LossScaler(SharedLossScale::new(LossScaleRule {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
        }))
    }
}

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one for the code that computes the loss.
///
/// Several optimizers may share a scaler, for one loss or for a loss each. The scale changes when each
/// of them has ended a step, or one of them its second: once for all of them, as with PyTorch, and it
/// falls if a gradient of any has overflowed. An optimizer that accumulates must not share one with another
/// that steps more often: its sums would be of several scales, and a model that is [armed with
/// them](crate::ReleaseOptimizer::arm_accumulated) is not stepped
/// ([`SeveralScales`](crate::ReleaseError::SeveralScales)). In a step that is not armed, nothing tells
/// sums from gradients.
///
/// A step without any scaled loss is refused ([`NotScaled`](crate::ReleaseError::NotScaled)). In a window,
/// scale the loss of each micro-batch: one that is not scaled, among others that are, is not found.
#[derive(Clone, Debug)]
pub struct LossScaler(SharedLossScale);

impl LossScaler {
    /// Returns the scaled loss, to run backward from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        loss * self.0.ask()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.0.current()
    }

    /// The scaler as an optimizer holds it.
    pub(super) fn for_optimizer(self) -> Self {
        Self(self.0.for_optimizer())
    }

    /// Factor that unscales a gradient.
    pub(super) fn inverse(&self) -> f64 {
        self.0.inverse()
    }

    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        self.0.out_of_range()
    }

    /// Refuses steps that would all be skipped.
    pub(super) fn check(&self) -> Result<(), ReleaseError> {
        match self.0.exhausted() {
            Some(scale) => Err(ReleaseError::LossScale { scale }),
            None => Ok(()),
        }
    }

    /// Begins another pass of the same step, whose loss must be scaled, too.
    pub(super) fn begin_pass(&self) {
        self.0.begin_pass();
    }

    /// Whether gradients can be unscaled: of losses that were scaled, and alike if they are added up.
    pub(super) fn check_scaled(&self, has_sums: bool) -> Result<(), ReleaseError> {
        if !self.0.is_asked() {
            return Err(ReleaseError::NotScaled);
        }
        match has_sums && self.0.is_mixed() {
            true => Err(ReleaseError::SeveralScales),
            false => Ok(()),
        }
    }

    /// Ends a step of an optimizer. Returns its scale.
    pub(super) fn update(&self, has_overflown: bool) -> f64 {
        self.0.update(has_overflown)
    }

    pub(super) fn to_record(&self) -> LossScale {
        self.0.to_record()
    }

    pub(super) fn load_record(&self, scale: LossScale) {
        self.0.load_record(scale);
    }
}

//! Loss scaling.

use burn::Tensor;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::scaling::{LossScale, SharedLossScale};

use crate::error::ReleaseError;

lean_arithmetic::loss_scaler_configuration! {
    ///
    /// Keep the weights in 32 bits and cast them to fp16 in the forward pass: gradients of fp16 weights
    /// are fp16, in which dividing by the scale would lose them again. Such weights are refused
    /// ([`HalfPrecision`](crate::ReleaseError::HalfPrecision)), except [with gradients in
    /// f32](crate::ReleaseOptimizer::with_f32_gradients).
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

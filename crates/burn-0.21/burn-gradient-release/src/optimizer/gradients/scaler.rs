//! Loss scaling.

use burn::tensor::{Tensor, backend::Backend};
use lean_arithmetic::{
    OutOfRange,
    scaling::{LossScale, SharedLossScale},
};
use serde::{Deserialize, Serialize};

use crate::error::ReleaseError;

lean_arithmetic::loss_scaler_configuration!();

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one to scale the loss with.
///
/// Several optimizers may share a scaler, for one loss or for a loss each. The scale changes when each
/// of them has ended a step, or one of them its second: once for all of them, as with PyTorch, and it
/// falls if a gradient of any has overflown. An optimizer that accumulates must not share one with another
/// that steps more often: its sums would be of several scales, and are refused
/// ([`SeveralScales`](crate::ReleaseError::SeveralScales)).
#[derive(Clone, Debug)]
pub struct LossScaler(SharedLossScale);

/// State of a [`LossScaler`], to resume with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerRecord(LossScale);

impl LossScaler {
    /// The loss to run backward from.
    pub fn scale<B: Backend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        loss * self.0.ask()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.0.current()
    }

    /// The scaler as an optimizer holds it.
    pub(crate) fn for_optimizer(self) -> Self {
        Self(self.0.for_optimizer())
    }

    /// Factor that unscales a gradient.
    pub(super) fn inverse(&self) -> f64 {
        self.0.inverse()
    }

    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        self.0.out_of_range()
    }

    /// The scale if all further steps would be skipped.
    pub(super) fn exhausted(&self) -> Option<f64> {
        self.0.exhausted()
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

    /// Ends a step. Returns its scale.
    pub(super) fn update(&self, has_overflown: bool) -> f64 {
        self.0.update(has_overflown)
    }

    pub(super) fn to_record(&self) -> LossScalerRecord {
        LossScalerRecord(self.0.to_record())
    }

    pub(super) fn load_record(&self, record: LossScalerRecord) {
        self.0.load_record(record.0);
    }
}

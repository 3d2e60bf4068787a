//! Loss scaling.

use burn::tensor::{Tensor, backend::Backend};
use lean_arithmetic::scaling::{LossScale, SharedLossScale};
use serde::{Deserialize, Serialize};

lean_arithmetic::loss_scaler_configuration!();

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one to scale the loss with.
///
/// Several optimizers may share a scaler, for one loss or for a loss each. The scale changes when each
/// of them has ended a step, or one of them its second: once for all of them, as with PyTorch, and it
/// falls if a gradient of any has overflown. One that did not step is not awaited again until it steps.
/// An optimizer that accumulates must not share one with another that steps more often: its sums would
/// be of several scales, and are refused ([`SeveralScales`](crate::ReleaseError::SeveralScales)).
#[derive(Clone, Debug)]
pub struct LossScaler(pub(crate) SharedLossScale);

/// State of a [`LossScaler`], to resume with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerRecord(pub(super) LossScale);

impl LossScaler {
    /// The loss to run backward from.
    pub fn scale<B: Backend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        loss * self.0.ask()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.0.current()
    }
}

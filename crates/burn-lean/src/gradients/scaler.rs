//! Loss scaling.

use burn::Tensor;
use lean_arithmetic::scaling::SharedLossScale;

lean_arithmetic::loss_scaler_configuration! {
    ///
    /// Keep the weights in 32 bits and cast them to fp16 in the forward pass: gradients of fp16 weights
    /// are fp16, in which dividing by the scale would lose them again. Such weights are refused
    /// ([`NotSteppable`](crate::ReleaseError::NotSteppable)), except [with gradients in
    /// f32](crate::ReleaseOptimizer::with_f32_gradients).
}

/// Scales losses for an optimizer [with this scaler](crate::ReleaseOptimizer::with_loss_scaler).
/// Clones share the scale: keep one for the code that computes the loss.
///
/// Several optimizers may share a scaler, for one loss or for a loss each. The scale changes when
/// each of them has ended a step, or one of them its second: once for all of them, as with PyTorch,
/// and it falls if a gradient of any has overflowed. One that did not step is not awaited again
/// until it steps. Two optimizers must not share a scaler if one accumulates and the other steps
/// more often: its sums would have several scales, and are refused
/// ([`SeveralScales`](crate::ReleaseError::SeveralScales)). Sums of Burn's own accumulator that are
/// given to `step` look like gradients, and are not refused.
///
/// A pass whose loss was not scaled is refused ([`NotScaled`](crate::ReleaseError::NotScaled)), also
/// that of a micro-batch.
#[derive(Clone, Debug)]
pub struct LossScaler(pub(super) SharedLossScale);

impl LossScaler {
    /// Returns the scaled loss, to run backward from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        loss * self.0.ask()
    }

    /// The current scale.
    pub fn current(&self) -> f64 {
        self.0.current()
    }
}

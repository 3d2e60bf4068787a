//! Coupled weight decay.

use super::super::{MicroBatch, Number};
use crate::settings::{amount, expect_in_range};

/// Coupled weight decay, if any: a multiple of the weight is added to the gradient.
#[derive(Clone, Copy, Debug)]
pub struct CoupledDecay(pub Option<f64>);

impl CoupledDecay {
    /// As a setting, to be checked.
    pub(super) fn setting(self) -> (&'static str, f64, bool) {
        amount("weight_decay", self.0.unwrap_or_default())
    }

    /// The same.
    ///
    /// # Panics
    ///
    /// If it is out of range, which is named with its value.
    pub fn checked(self, optimizer: &str) -> Self {
        expect_in_range(optimizer, &[self.setting()]);
        self
    }

    #[inline(always)]
    pub(super) fn gradient<T: Number>(self, weight: &T, grad: T) -> T {
        match self.0 {
            Some(penalty) => weight.clone().mul_scalar(penalty) + grad,
            None => grad,
        }
    }

    /// Decays once in a step, with its last micro-batch.
    pub fn in_micro_batch(self, micro_batch: MicroBatch) -> Self {
        Self(self.0.filter(|_| micro_batch.moves))
    }
}

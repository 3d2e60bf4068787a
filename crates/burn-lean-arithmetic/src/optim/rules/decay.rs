//! Weight decay that goes through the gradient.

use super::super::{Number, Part};

/// The coupled kind of weight decay, if any: a part of the weight is added to the gradient.
#[derive(Clone, Copy, Debug)]
pub struct CoupledDecay(pub Option<f64>);

impl CoupledDecay {
    #[inline(always)]
    pub(super) fn gradient<T: Number>(self, weight: &T, grad: T) -> T {
        match self.0 {
            Some(penalty) => weight.clone().mul_scalar(penalty) + grad,
            None => grad,
        }
    }

    /// Once in a step: with its last gradient.
    pub fn in_part(self, part: Part) -> Self {
        Self(self.0.filter(|_| part.moves))
    }
}

//! Weight decay that goes through the gradient.

use burn::optim::decay::WeightDecayConfig;

use crate::{Number, pass::Part};

/// The coupled kind of weight decay, if any: a part of the weight is added to the gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoupledDecay(Option<f64>);

impl CoupledDecay {
    #[inline(always)]
    pub(super) fn gradient<T: Number>(self, weight: &T, grad: T) -> T {
        match self.0 {
            Some(penalty) => weight.clone().mul_scalar(penalty) + grad,
            None => grad,
        }
    }

    /// Once in a step: with its last gradient.
    pub(super) fn in_part(self, part: Part) -> Self {
        Self(self.0.filter(|_| part.moves))
    }
}

impl From<Option<WeightDecayConfig>> for CoupledDecay {
    fn from(config: Option<WeightDecayConfig>) -> Self {
        Self(config.map(|config| config.penalty.into()))
    }
}

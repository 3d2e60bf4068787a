//! Dropout.

use burn::module::{Flag, Module, Param};
use burn::tensor::Tensor;

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::dropout;

configuration! {
    DropoutConfig(burn::nn::DropoutConfig) {
        new(prob: f64),
    }
    /// # Panics
    ///
    /// If the probability is not in `[0, 1)`.
    init() -> Dropout
}

/// Burn's [`Dropout`](burn::nn::Dropout) that [keeps its mask as bits](dropout).
#[derive(Module, Debug)]
pub struct Dropout {
    /// The probability that an element is dropped.
    pub prob: f64,
    /// Whether it drops on a device with autodiff.
    pub training: Param<Flag>,
}

same_fields!(Dropout, burn::nn::Dropout, { prob, training });

impl Dropout {
    /// Drops elements in training, and is the identity elsewhere.
    ///
    /// # Shapes
    ///
    /// `[...]`, and the output is as the input.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        dropout(input, self.current_prob())
    }

    /// The probability, or 0 where the layer is frozen.
    pub(super) fn current_prob(&self) -> f64 {
        match self.training.is_enabled() {
            true => self.prob,
            false => 0.0,
        }
    }
}

//! GELU as a module.

use burn::module::Module;
use burn::tensor::Tensor;

use super::same_fields::same_fields;
use crate::operations::{gelu, gelu_approximate};

/// Burn's [`Gelu`](burn::nn::Gelu) as [one operation](gelu).
#[derive(Module, Debug, Default)]
pub struct Gelu {
    /// Whether it is the approximation with `tanh`.
    pub approximate: bool,
}

same_fields!(Gelu, burn::nn::Gelu, { approximate });

impl Gelu {
    /// GELU.
    pub fn new() -> Self {
        Self::default()
    }

    /// The approximation with `tanh`.
    pub fn new_approximate() -> Self {
        Self { approximate: true }
    }

    /// Applies the activation.
    ///
    /// # Shapes
    ///
    /// `[...]`, and the output is as the input.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self.approximate {
            true => gelu_approximate(input),
            false => gelu(input),
        }
    }
}

//! The linear layer.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::adapted_linear;

configuration! {
    LinearConfig(burn::nn::LinearConfig) {
        new(d_input: usize, d_output: usize),
        with_bias: bool,
        with_initializer: Initializer,
        with_layout: LinearLayout,
    }
    init(device: &Device) -> Linear
}

/// Burn's [`Linear`](burn::nn::Linear) layer as [one operation](crate::operations::linear), also [with an
/// adapter](adapted_linear).
#[derive(Module, Debug)]
pub struct Linear {
    /// `[d_input, d_output]`
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`
    pub bias: Option<Param<Tensor<1>>>,
}

same_fields!(Linear, burn::nn::Linear, { weight, bias });

impl Linear {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - `input`: `[..., d_input]`
    /// - output: `[..., d_output]`
    ///
    /// # Panics
    ///
    /// If the last axis of `input` is not `d_input`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        adapted_linear(input, &self.weight, self.bias.as_ref().map(Param::val))
    }
}

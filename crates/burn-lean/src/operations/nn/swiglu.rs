//! The Swish gated linear unit as a module.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

use super::Linear;
use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::{swiglu, swiglu_linear};

configuration! {
    SwiGluConfig(burn::nn::SwiGluConfig) {
        new(d_input: usize, d_output: usize),
        with_bias: bool,
        with_initializer: Initializer,
        with_layout: LinearLayout,
    }
    init(device: &Device) -> SwiGlu
}

/// Burn's [`SwiGlu`](burn::nn::SwiGlu) with [its product as one operation](swiglu).
#[derive(Module, Debug)]
pub struct SwiGlu {
    /// Makes the gate.
    pub linear_inner: Linear,
    /// Computes the values that are gated.
    pub linear_outer: Linear,
}

same_fields!(SwiGlu, burn::nn::SwiGlu, {
    linear_inner,
    linear_outer,
});

impl SwiGlu {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - `input`: `[..., d_input]`
    /// - output: `[..., d_output]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let gate = self.linear_inner.forward(input.clone());
        swiglu(gate, self.linear_outer.forward(input))
    }

    /// Applies the layer and the linear layer behind it, as [one operation](swiglu_linear).
    ///
    /// # Shapes
    ///
    /// - `input`: `[..., d_input]`
    /// - output: `[..., d_output]` of `down`
    ///
    /// # Panics
    ///
    /// If `d_input` of `down` is not `d_output` of this layer.
    pub fn forward_linear<const D: usize>(&self, input: Tensor<D>, down: &Linear) -> Tensor<D> {
        let gate = self.linear_inner.forward(input.clone());
        let (up, bias) = (self.linear_outer.forward(input), down.bias.as_ref());
        swiglu_linear(gate, up, &down.weight, bias.map(Param::val))
    }
}

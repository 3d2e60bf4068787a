//! The Swish gated linear unit as a module.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

use super::Linear;
use super::same_fields::same_fields;
use crate::operations::swiglu;

/// Configuration of [`SwiGlu`]: that of Burn's [`SwiGluConfig`](burn::nn::SwiGluConfig).
#[derive(Config, Debug)]
pub struct SwiGluConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether biases are added.
    #[config(default = false)]
    pub bias: bool,
    /// Initializer of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The layout of the weights in memory.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl SwiGluConfig {
    /// A layer with these settings.
    pub fn init(&self, device: &Device) -> SwiGlu {
        burn::nn::SwiGluConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
            .init(device)
            .into()
    }
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
}

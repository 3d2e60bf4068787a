//! The linear layer.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

use super::same_fields::same_fields;
use crate::operations::linear;

/// Configuration of a [`Linear`] layer: that of Burn's [`LinearConfig`](burn::nn::LinearConfig).
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// Initializer of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The layout of the weight in memory.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearConfig {
    /// A layer with these settings.
    pub fn init(&self, device: &Device) -> Linear {
        burn::nn::LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
            .init(device)
            .into()
    }
}

/// Burn's [`Linear`](burn::nn::Linear) layer as [one operation](linear).
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
        linear(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

//! The position-wise feed-forward network.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::nn::activation::{Activation, ActivationConfig};
use burn::tensor::{Device, Tensor};

use crate::operations::activation::Function;
use crate::operations::feed_forward::activated_linear;
use crate::operations::nn::same_fields::same_fields;
use crate::operations::nn::{Dropout, Linear};
use crate::operations::{linear, swiglu};

/// Configuration of [`PositionWiseFeedForward`]: that of Burn's
/// [`PositionWiseFeedForwardConfig`](burn::nn::transformer::PositionWiseFeedForwardConfig).
#[derive(Config, Debug)]
pub struct PositionWiseFeedForwardConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features.
    pub d_ff: usize,
    /// The probability that a hidden feature is dropped. Default: 0.1.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Initializer of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The activation between the linear layers. Default: GELU.
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
}

impl PositionWiseFeedForwardConfig {
    /// A network with these settings.
    pub fn init(&self, device: &Device) -> PositionWiseFeedForward {
        burn::nn::transformer::PositionWiseFeedForwardConfig::new(self.d_model, self.d_ff)
            .with_dropout(self.dropout)
            .with_initializer(self.initializer.clone())
            .with_activation(self.activation.clone())
            .init(device)
            .into()
    }
}

/// Burn's [`PositionWiseFeedForward`](burn::nn::transformer::PositionWiseFeedForward).
#[derive(Module, Debug)]
pub struct PositionWiseFeedForward {
    /// From `d_model` to `d_ff`.
    pub linear_inner: Linear,
    /// From `d_ff` to `d_model`.
    pub linear_outer: Linear,
    /// Drops hidden features.
    pub dropout: Dropout,
    /// Burn's own. GELU is one operation with what follows it, of which only its input is kept;
    /// SwiGLU is one of its own. Not in records, as with Burn.
    #[module(skip)]
    pub activation: Activation,
}

same_fields!(PositionWiseFeedForward, burn::nn::transformer::PositionWiseFeedForward, {
    linear_inner,
    linear_outer,
    dropout,
    activation,
});

impl PositionWiseFeedForward {
    /// Applies the network.
    ///
    /// # Shapes
    ///
    /// `[..., d_model]`, and the output is as the input.
    ///
    /// # Panics
    ///
    /// If the last axis of `input` is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let x = self.linear_inner.forward(input);
        let function = match &self.activation {
            Activation::Gelu(module) if module.approximate => Function::GeluApproximate,
            Activation::Gelu(_) => Function::Gelu,
            other => {
                let x = activate(other, x);
                return self.linear_outer.forward(self.dropout.forward(x));
            }
        };
        let Linear { weight, bias } = &self.linear_outer;
        let (weight, bias) = (weight.val(), bias.as_ref().map(Param::val));
        activated_linear(function, self.dropout.current_prob(), x, weight, bias)
    }
}

fn activate<const D: usize>(activation: &Activation, x: Tensor<D>) -> Tensor<D> {
    match activation {
        Activation::SwiGlu(module) => {
            let run = |layer: &burn::nn::Linear, x| {
                linear(x, layer.weight.val(), layer.bias.as_ref().map(Param::val))
            };
            let gate = run(&module.linear_inner, x.clone());
            swiglu(gate, run(&module.linear_outer, x))
        }
        other => other.forward(x),
    }
}

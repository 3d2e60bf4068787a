//! The position-wise feed-forward network.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::nn::activation::{Activation, ActivationConfig};
use burn::tensor::{Device, Tensor};

use crate::operations::activation::Function;
use crate::operations::adapted_linear;
use crate::operations::feed_forward::activated_linear;
use crate::operations::nn::configuration::configuration;
use crate::operations::nn::same_fields::same_fields;
use crate::operations::nn::{Dropout, Linear};

configuration! {
    PositionWiseFeedForwardConfig(burn::nn::transformer::PositionWiseFeedForwardConfig) {
        new(d_model: usize, d_ff: usize),
        with_dropout: f64,
        with_initializer: Initializer,
        with_activation: ActivationConfig,
    }
    init(device: &Device) -> PositionWiseFeedForward
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
    /// Burn's own. The product of GELU or SwiGLU is one operation with what follows it, of which only its
    /// inputs are kept. Not in records, as with Burn.
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
        let (function, x, up) = match &self.activation {
            Activation::Gelu(module) if module.approximate => (Function::GeluApproximate, x, None),
            Activation::Gelu(_) => (Function::Gelu, x, None),
            Activation::SwiGlu(module) => {
                let run = |layer: &burn::nn::Linear, x| {
                    adapted_linear(x, &layer.weight, layer.bias.as_ref().map(Param::val))
                };
                let gate = run(&module.linear_inner, x.clone());
                (Function::Silu, gate, Some(run(&module.linear_outer, x)))
            }
            other => {
                let x = self.dropout.forward(other.forward(x));
                return self.linear_outer.forward(x);
            }
        };
        let Linear { weight, bias } = &self.linear_outer;
        let (weight, bias) = (weight.into(), bias.as_ref().map(Param::val));
        activated_linear(function, self.dropout.current_prob(), x, up, weight, bias)
    }
}

//! What is trained here.

use burn::nn::Dropout;
use burn::nn::transformer::TransformerEncoder;
use burn::tensor::Distribution;
use burn_lean::checkpoint_encoder;

use crate::harness::prelude::*;
use crate::harness::zero_linear;

/// Bytes of the largest gradient of [`deep`].
pub(super) const LARGEST: usize = 4 * 256 * 256;

/// Many equal layers, whose gradients are much more than one.
pub(super) fn deep(device: &Device) -> Vec<Linear> {
    (0..24).map(|_| zero_linear(256, 256, device)).collect()
}

pub(super) fn deep_loss(layers: &[Linear], step: usize) -> Tensor<1> {
    let x = numbers([2, 256], step, &flex());
    let layer = |x: Tensor<2>, layer: &Linear| x.clone() + layer.forward(x).tanh() * 0.05;
    layers.iter().fold(x, layer).square().mean()
}

#[derive(Module, Debug)]
pub(super) struct Encoder {
    layers: TransformerEncoder,
}

impl Encoder {
    pub(super) fn new(device: &Device) -> Self {
        let layers = TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
        Self {
            layers: layers.init(device),
        }
    }

    pub(super) fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let input = TransformerEncoderInput::new(numbers([2, 4, 8], step, device));
        let target = numbers([2, 4, 8], step + 100, device);
        (self.layers.forward(input) - target).square().mean()
    }

    /// With activations that backward computes again.
    pub(super) fn loss_in_scopes(&self, step: usize, device: &Device) -> Tensor<1> {
        let input = numbers([2, 4, 8], step, device);
        let target = numbers([2, 4, 8], step + 100, device);
        let output = checkpoint_encoder(&self.layers, input, None, None);
        (output - target).square().mean()
    }
}

/// With running statistics, dropout and noise of its own.
#[derive(Module, Debug)]
pub(super) struct Noisy {
    layers: Vec<Linear>,
    norm: BatchNorm,
    dropout: Dropout,
}

impl Noisy {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            layers: (0..3)
                .map(|_| LinearConfig::new(8, 8).init(device))
                .collect(),
            norm: BatchNormConfig::new(8).init(device),
            dropout: DropoutConfig::new(0.4).init(),
        }
    }

    fn layer(&self, layer: &Linear, x: Tensor<2>) -> Tensor<2> {
        let x = self.dropout.forward(layer.forward(x).tanh());
        let x = self.norm.forward(x);
        x.clone() + x.random_like(Distribution::Normal(0.0, 0.1))
    }

    pub(super) fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = numbers([16, 8], step, device);
        let layers = self.layers.iter();
        layers
            .fold(x, |x, layer| self.layer(layer, x))
            .square()
            .mean()
    }

    pub(super) fn loss_in_scopes(&self, step: usize, device: &Device) -> Tensor<1> {
        let mut x = numbers([16, 8], step, device);
        for at in 0..self.layers.len() {
            x = checkpoint(self, x, move |model: &Self, x| {
                model.layer(&model.layers[at], x)
            });
        }
        x.square().mean()
    }
}

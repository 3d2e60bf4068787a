//! The model and the data.

use burn::module::Module;
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};

const WIDTH: usize = 256;
const DEPTH: usize = 6;

/// A regression network.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    input: Linear,
    hidden: Vec<Linear>,
    output: Linear,
    activation: Gelu,
}

impl Mlp {
    pub(crate) fn new(device: &Device) -> Self {
        device.seed(42);
        Self {
            input: LinearConfig::new(2, WIDTH).init(device),
            hidden: (0..DEPTH)
                .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
                .collect(),
            output: LinearConfig::new(WIDTH, 1).init(device),
            activation: Gelu::new(),
        }
    }

    /// Mean squared error of the prediction for `points`, `[batch, 2]`.
    pub(crate) fn loss(&self, points: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
        let mut hidden = self.activation.forward(self.input.forward(points));
        for layer in &self.hidden {
            hidden = self.activation.forward(layer.forward(hidden));
        }
        (self.output.forward(hidden) - targets).square().mean()
    }
}

/// Points of a saddle surface, `[64, 2]`, and their heights, `[64, 1]`.
pub(crate) fn saddle(device: &Device) -> (Tensor<2>, Tensor<2>) {
    let axis = |i: usize| i as f32 / 3.5 - 1.0;
    let points: Vec<f32> = (0..64).flat_map(|i| [axis(i % 8), axis(i / 8)]).collect();
    let heights: Vec<f32> = points
        .chunks(2)
        .map(|p| p[0] * p[0] - p[1] * p[1])
        .collect();
    (
        Tensor::from_data(TensorData::new(points, [64, 2]), device),
        Tensor::from_data(TensorData::new(heights, [64, 1]), device),
    )
}

/// The end of a training.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) loss: f32,
    pub(crate) model: Mlp,
}

impl Outcome {
    /// The bits of all weights.
    pub(crate) fn weights(&self) -> Vec<u32> {
        let ends = [&self.model.input, &self.model.output];
        let layers = self.model.hidden.iter().chain(ends);
        let bits = layers.map(|layer| layer.weight.val().into_data());
        bits.flat_map(|data| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>())
            .collect()
    }
}

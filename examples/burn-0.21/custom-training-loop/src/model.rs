//! The model and the data, for any backend.

use burn::{
    module::Module,
    nn::{Gelu, Linear, LinearConfig},
    tensor::{Tensor, TensorData, backend::Backend},
};

const WIDTH: usize = 256;
const DEPTH: usize = 6;

/// A regression network.
#[derive(Module, Debug)]
pub(crate) struct Mlp<B: Backend> {
    input: Linear<B>,
    hidden: Vec<Linear<B>>,
    output: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(device: &B::Device) -> Self {
        B::seed(device, 42);
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
    pub(crate) fn loss(&self, points: Tensor<B, 2>, targets: Tensor<B, 2>) -> Tensor<B, 1> {
        let mut hidden = self.activation.forward(self.input.forward(points));
        for layer in &self.hidden {
            hidden = self.activation.forward(layer.forward(hidden));
        }
        (self.output.forward(hidden) - targets)
            .powi_scalar(2)
            .mean()
    }
}

/// Points of a saddle surface, `[64, 2]`, and their heights, `[64, 1]`.
pub(crate) fn saddle<B: Backend>(device: &B::Device) -> (Tensor<B, 2>, Tensor<B, 2>) {
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
pub(crate) struct Outcome<B: Backend> {
    pub(crate) loss: f32,
    pub(crate) model: Mlp<B>,
}

impl<B: Backend> Outcome<B> {
    /// The bits of all weights.
    pub(crate) fn weights(&self) -> Vec<u32> {
        let ends = [&self.model.input, &self.model.output];
        let layers = self.model.hidden.iter().chain(ends);
        layers
            .flat_map(|layer| layer.weight.val().into_data().into_vec::<f32>())
            .flatten()
            .map(f32::to_bits)
            .collect()
    }
}

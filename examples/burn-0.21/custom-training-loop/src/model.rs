//! The model and the data, for any backend.

use burn::{
    module::Module,
    nn::{Gelu, Linear, LinearConfig},
    tensor::{Tensor, TensorData, backend::Backend},
};

/// A small regression network.
#[derive(Module, Debug)]
pub(crate) struct Mlp<B: Backend> {
    input: Linear<B>,
    hidden: Linear<B>,
    output: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(device: &B::Device) -> Self {
        B::seed(device, 42);
        Self {
            input: LinearConfig::new(2, 64).init(device),
            hidden: LinearConfig::new(64, 64).init(device),
            output: LinearConfig::new(64, 1).init(device),
            activation: Gelu::new(),
        }
    }

    /// Mean squared error of the prediction for `points`, `[batch, 2]`.
    pub(crate) fn loss(&self, points: Tensor<B, 2>, targets: Tensor<B, 2>) -> Tensor<B, 1> {
        let hidden = self.activation.forward(self.input.forward(points));
        let hidden = self.activation.forward(self.hidden.forward(hidden));
        (self.output.forward(hidden) - targets)
            .powi_scalar(2)
            .mean()
    }
}

/// Points of a saddle surface, `[256, 2]`, and their heights, `[256, 1]`.
pub(crate) fn saddle<B: Backend>(device: &B::Device) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let axis = |i: usize| i as f32 / 7.5 - 1.0;
    let points: Vec<f32> = (0..256)
        .flat_map(|i| [axis(i % 16), axis(i / 16)])
        .collect();
    let heights: Vec<f32> = points
        .chunks(2)
        .map(|p| p[0] * p[0] - p[1] * p[1])
        .collect();
    (
        Tensor::from_data(TensorData::new(points, [256, 2]), device),
        Tensor::from_data(TensorData::new(heights, [256, 1]), device),
    )
}

/// Loss and weights at the end of a training.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) loss: f32,
    weights: Vec<u32>,
}

impl Outcome {
    pub(crate) fn new<B: Backend>(loss: f32, model: &Mlp<B>) -> Self {
        let weights = [&model.input, &model.hidden, &model.output]
            .into_iter()
            .flat_map(|layer| layer.weight.val().into_data().into_vec::<f32>())
            .flatten()
            .map(f32::to_bits)
            .collect();
        Self { loss, weights }
    }
}

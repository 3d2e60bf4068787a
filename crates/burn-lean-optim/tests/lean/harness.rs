//! Gradients, and an optimizer's steps on one parameter.

pub(crate) use crate::noise::Noise;

use burn::{
    backend::Flex,
    optim::{LearningRate, SimpleOptimizer},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{Distribution, Tensor, TensorData, backend::Backend},
};

impl Noise {
    pub(crate) fn tensor<B: Backend, const D: usize>(
        &mut self,
        shape: [usize; D],
        mut number: impl FnMut(&mut Self) -> f32,
    ) -> Tensor<B, D> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| number(self)).collect();
        Tensor::from_data(TensorData::new(values, shape), &Default::default())
    }
}

/// A parameter, the states of its optimizer, and the step that comes.
pub(crate) struct Run<O: SimpleOptimizer<B>, B: Backend, const D: usize> {
    pub(crate) optimizer: O,
    pub(crate) weight: Option<Tensor<B, D>>,
    pub(crate) state: Option<O::State<D>>,
}

impl<O: SimpleOptimizer<B>, B: Backend, const D: usize> Run<O, B, D> {
    pub(crate) fn new(optimizer: O, weight: Tensor<B, D>) -> Self {
        Self {
            optimizer,
            weight: Some(weight),
            state: None,
        }
    }

    pub(crate) fn step(&mut self, lr: LearningRate, grad: Tensor<B, D>) {
        let weight = self.weight.take().expect("put back after each step");
        let (weight, state) = self.optimizer.step(lr, weight, grad, self.state.take());
        (self.weight, self.state) = (Some(weight), state);
    }

    pub(crate) fn weights(&self) -> Vec<f32> {
        let weight = self.weight.clone().expect("put back after each step");
        weight.into_data().convert::<f32>().to_vec().unwrap()
    }

    /// The state as it would be saved.
    pub(crate) fn saved(&self) -> Vec<u8> {
        let state = self.state.clone().expect("stepped");
        BinBytesRecorder::<FullPrecisionSettings>::default()
            .record(state, ())
            .unwrap()
    }
}

/// A tensor with the same elements that shares a larger buffer, from its middle on.
pub(crate) fn view<const D: usize>(tensor: Tensor<Flex, D>) -> Tensor<Flex, D> {
    let noise = Tensor::random(tensor.shape(), Distribution::Default, &tensor.device());
    let rows = tensor.dims()[0];
    Tensor::cat(vec![noise, tensor], 0).narrow(0, rows, rows)
}

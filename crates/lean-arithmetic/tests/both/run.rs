//! An optimizer's steps on one parameter.

use burn::optim::LearningRate;
use burn::tensor::{DType, TensorData};

use super::noise::Noise;
use super::side::{Device, Optimizer, Saved, Tensor, device};

impl Noise {
    pub(crate) fn tensor<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
        mut number: impl FnMut(&mut Self) -> f32,
    ) -> Tensor<D> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| number(self)).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    /// In [-1, 1).
    pub(crate) fn numbers<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.tensor(shape, &device(), Self::number)
    }
}

pub(crate) fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().iter::<f32>().collect()
}

/// The same elements in a buffer of its own.
pub(crate) fn copy<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), (&tensor.device(), tensor.dtype()))
}

/// A parameter, and the states of its optimizer.
pub(crate) struct Run<O: Optimizer, const D: usize> {
    pub(crate) optimizer: O,
    pub(crate) weight: Option<Tensor<D>>,
    pub(crate) state: Option<O::State<D>>,
}

impl<O: Optimizer, const D: usize> Run<O, D> {
    pub(crate) fn new(optimizer: O, weight: Tensor<D>) -> Self {
        Self {
            optimizer,
            weight: Some(weight),
            state: None,
        }
    }

    pub(crate) fn step(&mut self, lr: LearningRate, grad: Tensor<D>) {
        let weight = self.weight.take().expect("put back after each step");
        let (weight, state) = self.optimizer.step(lr, weight, grad, self.state.take());
        (self.weight, self.state) = (Some(weight), state);
    }

    pub(crate) fn weight(&self) -> &Tensor<D> {
        self.weight.as_ref().expect("put back after each step")
    }

    pub(crate) fn weights(&self) -> Vec<f32> {
        numbers(&self.weight().clone().cast(DType::F32))
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        self.weights().into_iter().map(f32::to_bits).collect()
    }

    pub(crate) fn saved(&self) -> Saved {
        Saved::of(self.state.as_ref().expect("stepped"))
    }

    /// Goes on from a record of any optimizer.
    pub(crate) fn load(&mut self, saved: &Saved) {
        self.state = Some(saved.load(&self.weight().device()).expect("its state"));
    }

    /// The run as another optimizer goes on with it, from its record.
    pub(crate) fn resumed<P: Optimizer>(&self, optimizer: P) -> Run<P, D> {
        let mut run = Run::new(optimizer, self.weight().clone());
        run.load(&self.saved());
        run
    }
}

//! Gradients, and an optimizer's steps on one parameter.

use std::collections::BTreeMap;

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Tensor, TensorData};

pub(crate) use super::noise::Noise;

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

    /// On Flex, in [-1, 1).
    pub(crate) fn numbers<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.tensor(shape, &Device::flex(), Self::number)
    }
}

/// A parameter, the states of its optimizer, and the step that comes.
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

    pub(crate) fn weights(&self) -> Vec<f32> {
        let weight = self.weight.clone().expect("put back after each step");
        weight.cast(DType::F32).try_into_vec_as().unwrap()
    }

    pub(crate) fn saved(&self) -> Saved {
        Saved::of(self.state.as_ref().expect("stepped"))
    }

    /// Goes on from a record of any optimizer.
    pub(crate) fn load(&mut self, saved: &Saved) {
        let device = self.weight.as_ref().expect("it has one").device();
        self.state = Some(saved.load(&device).expect("its state"));
    }
}

/// A state as it would be saved: the tensors, as type, shape and bytes, and the scalars.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    pub(crate) tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    pub(crate) scalars: BTreeMap<String, usize>,
}

impl Saved {
    pub(crate) fn of(state: &impl RecordState) -> Self {
        let mut sink = StateSink::default();
        state.state_flatten("p", &mut sink);
        let tensor = |(name, data): (String, TensorData)| {
            let (dtype, shape) = (data.dtype(), data.shape().to_vec());
            (name, (dtype, shape, data.as_bytes().to_vec()))
        };
        let scalars = sink.scalars.into_iter();
        Self {
            tensors: sink.tensors.into_iter().map(tensor).collect(),
            scalars: scalars
                .map(|(name, value)| (name, usize::try_from(value).unwrap()))
                .collect(),
        }
    }

    pub(crate) fn load<S: RecordState>(&self, device: &Device) -> Option<S> {
        let scalars = self.scalars.iter();
        let scalars = scalars.map(|(name, value)| (name.clone(), (*value).into()));
        let mut source = StateSource::new(scalars.collect());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let data = TensorData::from_bytes_vec(bytes.clone(), shape.clone(), *dtype);
            source.insert_tensor(name.clone(), data);
        }
        S::state_unflatten("p", &mut source, device)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tensors.values().map(|(_, _, bytes)| bytes.len()).sum()
    }
}

/// A tensor with the same elements that shares a larger buffer, from its middle on.
pub(crate) fn view<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let rows = tensor.dims()[0];
    Tensor::cat(vec![tensor.clone(), tensor], 0).narrow(0, rows, rows)
}

/// The same elements in a buffer of its own.
pub(crate) fn copy<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    Tensor::from_data(tensor.to_data(), (&tensor.device(), tensor.dtype()))
}

//! A vector of any type whose gradient a test chooses.

use burn::tensor::DType;

use crate::harness::prelude::*;

#[derive(Module, Debug)]
pub(super) struct Vector<B: Backend> {
    weight: Param<Tensor<B, 1>>,
}

impl Vector<R> {
    pub(super) fn new(weight: &[f64], dtype: DType) -> Self {
        Self {
            weight: Param::from_tensor(tensor(weight, dtype)),
        }
    }

    /// A loss with this gradient.
    pub(super) fn loss(&self, grad: &[f64]) -> Tensor<R, 1> {
        let weight = self.weight.val();
        let grad = tensor(grad, weight.dtype());
        (weight * grad).sum()
    }

    pub(super) fn numbers(&self) -> Vec<f64> {
        numbers(self.weight.val())
    }
}

fn tensor(numbers: &[f64], dtype: DType) -> Tensor<R, 1> {
    Tensor::from_data(TensorData::from(numbers), (&Default::default(), dtype))
}

fn numbers(tensor: Tensor<R, 1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The nearest numbers of the type.
pub(super) fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    numbers(tensor(values, dtype))
}

/// SGD, which takes the rate times the clipped gradient off the vector.
pub(super) fn sgd() -> ReleaseOptimizer<Sgd<Flex>, Vector<R>, R> {
    SgdConfig::new().init().with_gradient_release()
}

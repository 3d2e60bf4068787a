//! Clipped gradients against values of others: the model and the step of this line of Burn.

use self::cases::Values;
use super::by_hand::gradients;
use crate::harness::prelude::*;

#[path = "../../../../../tests/burn-0.21/promises/reference/clipping.rs"]
mod cases;

fn tensor<const D: usize>(values: &Values) -> Tensor<D> {
    let data = TensorData::new(values.values.clone(), values.shape.clone());
    Tensor::from_data(data, &flex())
}

fn of_rank<const D: usize>(all: &[Values]) -> impl Iterator<Item = Tensor<D>> {
    let of_rank = all.iter().filter(|values| values.shape.len() == D);
    of_rank.map(tensor)
}

#[derive(Module, Debug)]
struct Model {
    vectors: Vec<Param<Tensor<1>>>,
    matrices: Vec<Param<Tensor<2>>>,
    cubes: Vec<Param<Tensor<3>>>,
    kernels: Vec<Param<Tensor<4>>>,
}

impl Model {
    fn new(weights: &[Values]) -> Self {
        fn of<const D: usize>(weights: &[Values]) -> Vec<Param<Tensor<D>>> {
            of_rank(weights).map(Param::from_tensor).collect()
        }
        Self {
            vectors: of(weights),
            matrices: of(weights),
            cubes: of(weights),
            kernels: of(weights),
        }
    }

    /// Has these gradients.
    fn loss(&self, gradients: &[Values]) -> Tensor<1> {
        fn of<const D: usize>(params: &[Param<Tensor<D>>], gradients: &[Values]) -> Vec<Tensor<1>> {
            let pairs = params.iter().zip(of_rank(gradients));
            pairs
                .map(|(param, grad)| (param.val() * grad).sum())
                .collect()
        }
        let products = [
            of(&self.vectors, gradients),
            of(&self.matrices, gradients),
            of(&self.cubes, gradients),
            of(&self.kernels, gradients),
        ];
        let products = products.into_iter().flatten();
        products.reduce(|one, other| one + other).unwrap()
    }

    fn values(&self, shape: &[usize]) -> Vec<f32> {
        fn of<const D: usize>(params: &[Param<Tensor<D>>], shape: &[usize]) -> Option<Vec<f32>> {
            let mut params = params.iter().map(|param| param.val());
            let found = params.find(|value| value.dims()[..] == *shape)?;
            Some(found.into_data().iter::<f32>().collect())
        }
        of(&self.vectors, shape)
            .or_else(|| of(&self.matrices, shape))
            .or_else(|| of(&self.cubes, shape))
            .or_else(|| of(&self.kernels, shape))
            .unwrap()
    }
}

fn optim(clipping: NormClipping) -> ReleaseOptimizer {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(clipping)
}

/// One step with these gradients: inside backward, or Burn's own.
fn step(optim: &mut ReleaseOptimizer, model: Model, grads: &[Values], is_inside: bool) -> Model {
    if is_inside && optim.needs_two_passes() {
        return optim.two_passes(1.0, model, |model| model.loss(grads)).0;
    }
    let loss = model.loss(grads);
    if is_inside {
        return optim.backward(1.0, loss, model);
    }
    let grads = gradients(&model, loss);
    optim.step(1.0, model, grads)
}

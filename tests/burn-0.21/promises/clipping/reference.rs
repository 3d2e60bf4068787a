//! Clipped gradients against values of others: the model and the step of this line of Burn.

use burn_gradient_release::{AdaptiveClippingConfig, AutoClipConfig, ZClipConfig};

use self::cases::Values;
use crate::harness::prelude::*;

#[path = "../reference/clipping.rs"]
mod cases;

fn tensor<const D: usize>(values: &Values) -> Tensor<R, D> {
    let data = TensorData::new(values.values.clone(), values.shape.clone());
    Tensor::from_data(data, &Default::default())
}

fn of_rank<const D: usize>(all: &[Values]) -> impl Iterator<Item = Tensor<R, D>> {
    let of_rank = all.iter().filter(|values| values.shape.len() == D);
    of_rank.map(tensor)
}

#[derive(Module, Debug)]
struct Free<B: Backend> {
    vectors: Vec<Param<Tensor<B, 1>>>,
    matrices: Vec<Param<Tensor<B, 2>>>,
    cubes: Vec<Param<Tensor<B, 3>>>,
    kernels: Vec<Param<Tensor<B, 4>>>,
}

type Model = Free<R>;

impl Model {
    fn new(weights: &[Values]) -> Self {
        fn of<const D: usize>(weights: &[Values]) -> Vec<Param<Tensor<R, D>>> {
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
    fn loss(&self, gradients: &[Values]) -> Tensor<R, 1> {
        fn of<const D: usize>(
            params: &[Param<Tensor<R, D>>],
            gradients: &[Values],
        ) -> Vec<Tensor<R, 1>> {
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
        fn of<const D: usize>(params: &[Param<Tensor<R, D>>], shape: &[usize]) -> Option<Vec<f32>> {
            let mut params = params.iter().map(|param| param.val());
            let found = params.find(|value| value.shape().to_vec() == shape)?;
            Some(found.into_data().to_vec().unwrap())
        }
        of(&self.vectors, shape)
            .or_else(|| of(&self.matrices, shape))
            .or_else(|| of(&self.cubes, shape))
            .or_else(|| of(&self.kernels, shape))
            .unwrap()
    }
}

type Optim = ReleaseOptimizer<Sgd<Flex>, Model, R>;

fn optim(clipping: NormClipping) -> Optim {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(clipping)
}

/// One step with these gradients, armed or not.
fn step(optim: &mut Optim, mut model: Model, grads: &[Values], is_armed: bool) -> Model {
    if is_armed && optim.needs_two_passes() {
        return optim.two_passes(1.0, model, |model| model.loss(grads)).0;
    }
    if is_armed {
        model = optim.arm(1.0, model);
    }
    let grads = gradients(&model, model.loss(grads));
    optim.step(1.0, model, grads)
}

//! The least that a step can need: gradient release that throws every gradient away.

use crate::stepper::Stepper;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{LearningRate, SimpleOptimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{Device, Tensor};
use burn_gradient_release::{Recompute, ReleaseBackend, WithGradientRelease};

/// An optimizer that leaves every parameter as it is.
pub fn discard<M, B>(recompute: Recompute) -> Box<dyn Stepper<M, B>>
where
    M: AutodiffModule<B> + 'static,
    B: ReleaseBackend,
{
    let optimizer: OptimizerAdaptor<Discard, M, B> = Discard.into();
    Box::new(optimizer.with_gradient_release().with_recompute(recompute))
}

#[derive(Clone, Copy, Debug)]
struct Discard;

impl<B: Backend> SimpleOptimizer<B> for Discard {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        _lr: LearningRate,
        tensor: Tensor<B, D>,
        _grad: Tensor<B, D>,
        _state: Option<()>,
    ) -> (Tensor<B, D>, Option<()>) {
        (tensor, None)
    }

    fn to_device<const D: usize>(_state: (), _device: &Device<B>) {}
}

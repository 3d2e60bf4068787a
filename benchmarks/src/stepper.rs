//! One small trait over Burn's optimizers with and without gradient release, for loops written by hand.
//!
//! A loop over a [`Stepper`] reads like Burn's own, with one line more, `arm`, which does nothing in
//! plain mode:
//!
//! ```ignore
//! model = optimizer.arm(lr, model)?;
//! let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
//! model = optimizer.step(lr, model, grads)?;
//! ```

use anyhow::Result;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{GradientsParams, LearningRate, Optimizer, SimpleOptimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Tensor};
use burn_gradient_release::{ReleaseBackend, ReleaseError, ReleaseOptimizer, WithGradientRelease};

/// An optimizer of whatever kind, in whichever mode, for the models of one type.
pub trait Stepper<M: AutodiffModule<B>, B: AutodiffBackend> {
    /// Readies the model for one backward pass at this rate.
    fn arm(&mut self, lr: LearningRate, model: M) -> Result<M>;

    /// Finishes the step at the same rate.
    fn step(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> Result<M>;
}

/// Gradient release that throws every gradient away: no step needs less memory.
pub fn discard<M, B>() -> Box<dyn Stepper<M, B>>
where
    M: AutodiffModule<B> + 'static,
    B: ReleaseBackend,
{
    let optimizer: OptimizerAdaptor<Discard, M, B> = Discard.into();
    Box::new(optimizer.with_gradient_release())
}

impl<O, M, B> Stepper<M, B> for OptimizerAdaptor<O, M, B>
where
    M: AutodiffModule<B>,
    B: AutodiffBackend,
    O: SimpleOptimizer<B::InnerBackend>,
{
    fn arm(&mut self, _lr: LearningRate, model: M) -> Result<M> {
        Ok(model)
    }

    fn step(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        Ok(Optimizer::step(self, lr, model, grads))
    }
}

impl<O, M, B> Stepper<M, B> for ReleaseOptimizer<O, M, B>
where
    M: AutodiffModule<B>,
    B: ReleaseBackend,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn arm(&mut self, lr: LearningRate, model: M) -> Result<M> {
        Ok(self.try_arm(lr, model).map_err(ReleaseError::from)?)
    }

    fn step(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        Ok(self
            .try_step(lr, model, grads)
            .map_err(ReleaseError::from)?)
    }
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

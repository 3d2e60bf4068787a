//! What optimizers with and without gradient release have in common, on Burn 0.21.

use anyhow::Result;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{GradientsParams, LearningRate, Optimizer, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{ReleaseBackend, ReleaseError, ReleaseOptimizer, StepReport};

/// An optimizer in one of the modes.
pub trait Stepper<M, B: AutodiffBackend> {
    /// Prepares the model for the forward pass of a step.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::try_arm`]; none without gradient release.
    fn arm(&mut self, rate: LearningRate, model: M) -> Result<M>;

    /// The model after the step.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::try_step`]; none without gradient release.
    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M>;

    /// What happened to each parameter in the last step, with gradient release.
    fn last_step(&self) -> Option<StepReport>;
}

impl<O, M, B> Stepper<M, B> for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    fn arm(&mut self, _rate: LearningRate, model: M) -> Result<M> {
        Ok(model)
    }

    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        Ok(Optimizer::step(self, rate, model, grads))
    }

    fn last_step(&self) -> Option<StepReport> {
        None
    }
}

impl<O, M, B> Stepper<M, B> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn arm(&mut self, rate: LearningRate, model: M) -> Result<M> {
        Ok(self.try_arm(rate, model).map_err(ReleaseError::from)?)
    }

    fn step(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> Result<M> {
        Ok(self
            .try_step(rate, model, grads)
            .map_err(ReleaseError::from)?)
    }

    fn last_step(&self) -> Option<StepReport> {
        Self::last_step(self)
    }
}

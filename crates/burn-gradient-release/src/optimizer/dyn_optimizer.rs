//! What optimizers with and without gradient release have in common.

use burn::{
    module::AutodiffModule,
    optim::{GradientsParams, LearningRate, Optimizer, SimpleOptimizer, adaptor::OptimizerAdaptor},
    tensor::backend::AutodiffBackend,
};

use super::{
    error::{Refused, ReleaseError, expect},
    release_optimizer::ReleaseOptimizer,
    report::StepReport,
};
use crate::ReleaseBackend;

/// An optimizer with or without gradient release, for a training loop that decides at run time.
///
/// Burn's own optimizers implement it as well: with them [`arm`](Self::arm) does nothing. Burn's
/// [`Optimizer`] is no trait object; this one is.
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams},
///     tensor::Tensor,
/// };
/// use burn_gradient_release::{DynOptimizer, GradientRelease, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// fn optimizer(release: bool) -> Box<dyn DynOptimizer<Linear<B>, B>> {
///     let adam = AdamConfig::new().init();
///     match release {
///         true => Box::new(adam.with_gradient_release()),
///         false => Box::new(adam),
///     }
/// }
///
/// let device = Default::default();
/// for release in [false, true] {
///     let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
///     let mut optim = optimizer(release);
///
///     model = optim.arm(1e-3, model);
///     let batch = Tensor::<B, 2>::ones([8, 4], &device);
///     let loss = model.forward(batch).mean();
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     assert_eq!(grads.is_empty(), release);
///     model = optim.step(1e-3, model, grads);
/// #   let _ = model;
/// }
/// ```
pub trait DynOptimizer<M, B: AutodiffBackend> {
    /// Readies the model for one optimizer step at this rate.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_arm`](Self::try_arm) returns.
    fn arm(&mut self, lr: LearningRate, model: M) -> M {
        expect(self.try_arm(lr, model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::try_arm`]; none without gradient release.
    fn try_arm(&mut self, lr: LearningRate, model: M) -> Result<M, Refused<M>>;

    /// Takes the arming back.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::try_disarm`]; none without gradient release.
    fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>>;

    /// Steps the model, or finishes the step that backward has begun.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_step`](Self::try_step) returns.
    fn step(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> M {
        expect(self.try_step(lr, model, grads))
    }

    /// [`step`](Self::step), handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::try_step`]; none without gradient release.
    fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>>;

    /// Refuses while a backward has stepped parameters and `step` has not finished that step.
    ///
    /// # Errors
    ///
    /// As [`ReleaseOptimizer::check_finished`]; none without gradient release.
    fn check_finished(&self) -> Result<(), ReleaseError>;

    /// What happened to each parameter in the last finished step, with gradient release.
    fn last_step(&self) -> Option<StepReport>;
}

impl<O, M, B> DynOptimizer<M, B> for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    fn try_arm(&mut self, _lr: LearningRate, model: M) -> Result<M, Refused<M>> {
        Ok(model)
    }

    fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>> {
        Ok(model)
    }

    fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        Ok(Optimizer::step(self, lr, model, grads))
    }

    fn check_finished(&self) -> Result<(), ReleaseError> {
        Ok(())
    }

    fn last_step(&self) -> Option<StepReport> {
        None
    }
}

impl<O, M, B> DynOptimizer<M, B> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn try_arm(&mut self, lr: LearningRate, model: M) -> Result<M, Refused<M>> {
        Self::try_arm(self, lr, model)
    }

    fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>> {
        Self::try_disarm(self, model)
    }

    fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        Self::try_step(self, lr, model, grads)
    }

    fn check_finished(&self) -> Result<(), ReleaseError> {
        Self::check_finished(self)
    }

    fn last_step(&self) -> Option<StepReport> {
        Self::last_step(self)
    }
}

//! Burn's optimizers with and without gradient release, and for loops written by hand one small trait
//! over both.
//!
//! A loop over a [`Stepper`], as in `vit bench`, reads like Burn's own, with one line more, `arm`, which does nothing in
//! plain mode:
//!
//! ```ignore
//! model = optimizer.arm(lr, model)?;
//! let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
//! model = optimizer.step(lr, model, grads)?;
//! ```

use crate::config::OptimizerKind;
use crate::model::Vit;
use anyhow::Result;
use burn::backend::Autodiff;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{GradientsParams, LearningRate, Optimizer, SimpleOptimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Tensor};
use burn_gradient_release::{
    GradientRelease, ReleaseBackend, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

/// Burn's backend for training.
pub type Plain<B, C> = Autodiff<B, C>;

/// The same with gradient release around it.
pub type Release<B, C> = GradientRelease<Autodiff<B, C>>;

/// An optimizer of whatever kind, in whichever mode.
pub trait Stepper<B: AutodiffBackend> {
    /// Readies the model for one backward pass at this rate.
    fn arm(&mut self, lr: LearningRate, model: Vit<B>) -> Result<Vit<B>>;

    /// Finishes the step at the same rate.
    fn step(&mut self, lr: LearningRate, model: Vit<B>, grads: GradientsParams) -> Result<Vit<B>>;
}

/// Runs an expression for the optimizer that was asked for.
macro_rules! with_optimizer {
    ($kind:expr, $backend:ty, |$optimizer:ident| $made:expr) => {{
        use burn::optim::{
            AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig,
            momentum::MomentumConfig,
        };
        macro_rules! made {
            ($config:expr) => {{
                let $optimizer = $config.init::<$backend, $crate::model::Vit<$backend>>();
                $made
            }};
        }
        match $kind {
            $crate::config::OptimizerKind::Adam => made!(AdamConfig::new()),
            $crate::config::OptimizerKind::AdamW => {
                made!(AdamWConfig::new().with_weight_decay(0.05))
            }
            $crate::config::OptimizerKind::Sgd => {
                made!(SgdConfig::new().with_momentum(Some(MomentumConfig::new())))
            }
            $crate::config::OptimizerKind::AdaGrad => made!(AdaGradConfig::new()),
            $crate::config::OptimizerKind::RmsProp => made!(RmsPropConfig::new()),
            $crate::config::OptimizerKind::Adan => made!(AdanConfig::new()),
        }
    }};
}
pub(crate) use with_optimizer;

/// An optimizer for plain Burn.
pub fn plain<B: AutodiffBackend>(kind: OptimizerKind) -> Box<dyn Stepper<B>> {
    with_optimizer!(kind, B, |optimizer| Box::new(optimizer))
}

/// The same optimizer with gradient release.
pub fn release<B: ReleaseBackend>(kind: OptimizerKind) -> Box<dyn Stepper<B>> {
    with_optimizer!(kind, B, |optimizer| Box::new(
        optimizer.with_gradient_release()
    ))
}

/// Gradient release that throws every gradient away: no step needs less memory.
pub fn discard<B: ReleaseBackend>() -> Box<dyn Stepper<B>> {
    let optimizer: OptimizerAdaptor<Discard, Vit<B>, B> = Discard.into();
    Box::new(optimizer.with_gradient_release())
}

impl<O, B> Stepper<B> for OptimizerAdaptor<O, Vit<B>, B>
where
    B: AutodiffBackend,
    O: SimpleOptimizer<B::InnerBackend>,
{
    fn arm(&mut self, _lr: LearningRate, model: Vit<B>) -> Result<Vit<B>> {
        Ok(model)
    }

    fn step(&mut self, lr: LearningRate, model: Vit<B>, grads: GradientsParams) -> Result<Vit<B>> {
        Ok(Optimizer::step(self, lr, model, grads))
    }
}

impl<O, B> Stepper<B> for ReleaseOptimizer<O, Vit<B>, B>
where
    B: ReleaseBackend,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    fn arm(&mut self, lr: LearningRate, model: Vit<B>) -> Result<Vit<B>> {
        Ok(self.try_arm(lr, model).map_err(ReleaseError::from)?)
    }

    fn step(&mut self, lr: LearningRate, model: Vit<B>, grads: GradientsParams) -> Result<Vit<B>> {
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

//! Plain Burn and gradient release behind one small trait: all that the two differ in.
//!
//! A loop over a [`Stepper`] reads like Burn's own, with one line more, `arm`, which does nothing in
//! plain mode:
//!
//! ```ignore
//! model = optimizer.arm(lr, model)?;
//! let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
//! model = optimizer.step(lr, model, grads)?;
//! ```

use crate::config::OptimizerKind;
use crate::model::Vit;
use anyhow::{Context, Result};
use burn::backend::Autodiff;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, LearningRate, Optimizer,
    RmsPropConfig, SgdConfig, SimpleOptimizer,
};
use burn::record::{DefaultRecorder, Record, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Tensor};
use burn_gradient_release::{
    GradientRelease, ReleaseBackend, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};
use std::path::Path;

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

    /// Writes the optimizer's record, the same in both modes.
    fn save(&self, file: &Path) -> Result<()>;

    /// Reads the optimizer's record, whichever mode wrote it.
    fn load(&mut self, file: &Path, device: &Device<B>) -> Result<()>;
}

/// Runs an expression for the optimizer that was asked for.
macro_rules! with_optimizer {
    ($kind:expr, $backend:ty, |$optimizer:ident| $made:expr) => {{
        macro_rules! made {
            ($config:expr) => {{
                let $optimizer = $config.init::<$backend, Vit<$backend>>();
                Box::new($made)
            }};
        }
        match $kind {
            OptimizerKind::Adam => made!(AdamConfig::new()),
            OptimizerKind::AdamW => made!(AdamWConfig::new().with_weight_decay(0.05)),
            OptimizerKind::Sgd => {
                made!(SgdConfig::new().with_momentum(Some(MomentumConfig::new())))
            }
            OptimizerKind::AdaGrad => made!(AdaGradConfig::new()),
            OptimizerKind::RmsProp => made!(RmsPropConfig::new()),
            OptimizerKind::Adan => made!(AdanConfig::new()),
        }
    }};
}

/// An optimizer for plain Burn.
pub fn plain<B: AutodiffBackend>(kind: OptimizerKind) -> Box<dyn Stepper<B>> {
    with_optimizer!(kind, B, |optimizer| optimizer)
}

/// The same optimizer with gradient release.
pub fn release<B: ReleaseBackend>(kind: OptimizerKind) -> Box<dyn Stepper<B>> {
    with_optimizer!(kind, B, |optimizer| optimizer.with_gradient_release())
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

    fn save(&self, file: &Path) -> Result<()> {
        save(self.to_record(), file)
    }

    fn load(&mut self, file: &Path, device: &Device<B>) -> Result<()> {
        *self = self.clone().load_record(load(file, device)?);
        Ok(())
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

    fn save(&self, file: &Path) -> Result<()> {
        save(self.try_to_record()?, file)
    }

    fn load(&mut self, file: &Path, device: &Device<B>) -> Result<()> {
        *self = self.clone().load_record(load(file, device)?);
        Ok(())
    }
}

/// Writes a record to `file`, to which the recorder adds its extension.
pub fn save<B: Backend, R: Record<B>>(record: R, file: &Path) -> Result<()> {
    Recorder::<B>::record(&DefaultRecorder::new(), record, file.to_path_buf())
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Reads a record that [`save`] wrote.
pub fn load<B: Backend, R: Record<B>>(file: &Path, device: &Device<B>) -> Result<R> {
    Recorder::<B>::load(&DefaultRecorder::new(), file.to_path_buf(), device)
        .with_context(|| format!("cannot read {}", file.display()))
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

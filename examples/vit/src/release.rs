//! The choice between Burn's optimizer and the one that releases gradients.

use crate::config::{Mode, OptimizerKind, TrainConfig};
use anyhow::Result;
use burn::module::Module;
use burn::nn::Embedding;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams,
    LambConfig, LionConfig, ModuleOptimizer, OptimizerRecord, RmsPropConfig, SgdConfig,
};
use burn_lean::optim::{
    AdaLomoConfig, CameConfig, EightBitMoments, InOnePass, Lean, RAdamConfig, StableAdamWConfig,
};
use burn_lean::{
    DataParallel, FirstPass, Refused, ReleaseError, ReleaseOptimizer, SaveStatesError,
    WithGradientRelease,
};
use std::path::Path;
use std::sync::Arc;

/// Burn's optimizer, with or without gradient release.
///
/// A program that always trains with gradient release has no such choice: it keeps a
/// [`ReleaseOptimizer`] and calls its `arm` before the forward pass and its `step` after the
/// backward pass.
#[allow(missing_debug_implementations)] // Burn's optimizer has none.
pub enum Stepper {
    /// All gradients first, then the step.
    Plain(ModuleOptimizer),
    /// Every parameter steps inside the backward pass.
    Release(ReleaseOptimizer),
}

impl Stepper {
    /// The optimizer of the settings, before its first step. Several processes train with gradient
    /// release.
    pub fn new(config: &TrainConfig, parallel: Option<&DataParallel>) -> Self {
        let optimizer = optimizer(config);
        match config.engine.mode {
            Mode::Plain => Self::Plain(optimizer),
            Mode::Release => {
                // A resumed run has the weights of the uninterrupted one, bit for bit.
                let optimizer = optimizer
                    .with_gradient_release()
                    .with_first_pass(FirstPass::Exact);
                Self::Release(match parallel {
                    None => optimizer,
                    Some(parallel) => optimizer.with_reduction(Arc::new(parallel.clone())),
                })
            }
        }
    }

    /// Prepares the model for the forward pass of a step.
    pub fn arm<M: Module>(&mut self, rate: f64, model: M) -> Result<M> {
        match self {
            Self::Plain(_) => Ok(model),
            Self::Release(optimizer) => optimizer.try_arm(rate, model).map_err(reason),
        }
    }

    /// The model after the step.
    pub fn step<M: Module>(&mut self, rate: f64, model: M, grads: GradientsParams) -> Result<M> {
        match self {
            Self::Plain(optimizer) => Ok(optimizer.step(rate, model, grads)),
            Self::Release(optimizer) => optimizer.try_step(rate, model, grads).map_err(reason),
        }
    }

    /// Writes the states of all parameters to a file: either optimizer loads those of the other.
    /// Several processes all call it, and the first writes.
    pub fn save(&self, parallel: Option<&DataParallel>, file: &Path) -> Result<()> {
        match (self, parallel) {
            (Self::Plain(optimizer), _) => optimizer.save(file)?,
            (Self::Release(optimizer), None) => optimizer.try_to_record()?.save(file)?,
            (Self::Release(optimizer), Some(parallel)) => {
                match parallel.save_states(optimizer, file) {
                    Err(SaveStatesError::Replicas(error)) => return Err(error.into()),
                    saved => saved?,
                }
            }
        }
        Ok(())
    }

    /// Continues from a file that either optimizer has [saved](Self::save). Of several processes,
    /// each has to know the model by now.
    pub fn load(self, parallel: Option<&DataParallel>, file: &Path) -> Result<Self> {
        Ok(match (self, parallel) {
            (Self::Plain(optimizer), _) => Self::Plain(optimizer.load(file)?),
            (Self::Release(optimizer), None) => {
                Self::Release(optimizer.load_record(OptimizerRecord::load(file)?))
            }
            (Self::Release(optimizer), Some(parallel)) => {
                Self::Release(parallel.load_states(optimizer, file)?)
            }
        })
    }
}

/// The training ends with this error, and without the model that was refused.
fn reason<M, G>(refused: Refused<M, G>) -> anyhow::Error {
    ReleaseError::from(refused).into()
}

fn optimizer(config: &TrainConfig) -> ModuleOptimizer {
    let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
    let adamw = adamw.with_weight_decay(config.weight_decay as f32);
    // A vision transformer has no embedding that would keep its moments in 32 bits.
    let embeddings = Vec::<Embedding>::new();
    match config.engine.optimizer {
        OptimizerKind::Adam => adam.init(),
        OptimizerKind::AdamOnePass => adam.in_one_pass().init(),
        OptimizerKind::Adam8bit => adam.in_one_pass().with_8_bit_moments(&embeddings).init(),
        OptimizerKind::AdamW => adamw.init(),
        OptimizerKind::AdamWOnePass => adamw.in_one_pass().init(),
        OptimizerKind::AdamW8bit => adamw.in_one_pass().with_8_bit_moments(&embeddings).init(),
        OptimizerKind::StableAdamW => StableAdamWConfig::new()
            .with_weight_decay(config.weight_decay)
            .init(),
        OptimizerKind::RAdam => RAdamConfig::new().init(),
        // Its own rates would leave the schedule without effect.
        OptimizerKind::Adafactor => AdafactorConfig::new().with_relative_step(false).init(),
        OptimizerKind::AdaLomo => AdaLomoConfig::new().init(),
        OptimizerKind::Came => CameConfig::new().init(),
        OptimizerKind::Lion => LionConfig::new().init(),
        OptimizerKind::Lamb => LambConfig::new().init(),
        OptimizerKind::Sgd => SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .init(),
        OptimizerKind::AdaGrad => AdaGradConfig::new().init(),
        OptimizerKind::RmsProp => RmsPropConfig::new().init(),
        OptimizerKind::Adan => AdanConfig::new().init(),
    }
}

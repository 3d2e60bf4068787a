//! The choice between Burn's optimizer and the one that releases gradients.

use crate::settings::{Mode, OptimizerKind, Settings};
use anyhow::Result;
use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, GradientsParams, LambConfig, LionConfig,
    ModuleOptimizer, OptimizerRecord, SgdConfig,
};
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};
use burn_lean::{
    DataParallel, FirstPass, Refused, ReleaseError, ReleaseOptimizer, SaveStatesError,
    WithGradientRelease, timeline,
};
use std::path::Path;
use std::sync::Arc;
use vit_common::settings::TrainSettings;

/// Burn's optimizer, with or without gradient release.
///
/// A program that always trains with gradient release has no such choice: it keeps a
/// [`ReleaseOptimizer`] and calls its `arm` before the forward pass and its `step` after the
/// backward pass.
#[allow(missing_debug_implementations)] // Burn's optimizer has none.
pub enum Optimizer {
    /// All gradients first, then the step.
    Plain(ModuleOptimizer),
    /// Every parameter steps inside the backward pass.
    Release(ReleaseOptimizer),
}

impl Optimizer {
    /// The optimizer of the settings, before its first step. Several processes train with gradient
    /// release.
    pub fn new<M: Module>(settings: &Settings, parallel: Option<&DataParallel>, model: &M) -> Self {
        let TrainSettings {
            weight_decay, seed, ..
        } = settings.train;
        let optimizer = ordinary(settings.optimizer, Some(weight_decay), seed, model);
        if settings.mode == Mode::Plain {
            return Self::Plain(optimizer);
        }
        // A resumed run has the weights of the uninterrupted one, bit for bit.
        let optimizer = optimizer
            .with_gradient_release()
            .with_first_pass(FirstPass::Exact);
        Self::Release(match parallel {
            None => optimizer,
            Some(parallel) => optimizer.with_reduction(Arc::new(parallel.clone())),
        })
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
            // `optimizer.step(rate, model, grads)`, and a memory timeline knows of it.
            Self::Plain(optimizer) => Ok(timeline::step(optimizer, rate, model, grads)),
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

/// Burn's optimizer of this kind, or one that is used like it. The weight decay is that of the
/// AdamWs, by default Burn's; the seed is that of rounding.
pub fn ordinary<M: Module>(
    kind: OptimizerKind,
    weight_decay: Option<f64>,
    seed: u64,
    model: &M,
) -> ModuleOptimizer {
    let (adam, mut adamw) = (AdamConfig::new(), AdamWConfig::new());
    if let Some(decay) = weight_decay {
        adamw = adamw.with_weight_decay(decay as f32);
    }
    match kind {
        OptimizerKind::Adam => adam.init(),
        OptimizerKind::AdamOnePass => adam.in_one_pass().init(),
        OptimizerKind::Adam8bit => adam.in_one_pass().with_8_bit_moments(model).init(),
        OptimizerKind::AdamW => adamw.init(),
        OptimizerKind::AdamWOnePass => adamw.in_one_pass().init(),
        OptimizerKind::AdamW8bit => adamw.in_one_pass().with_8_bit_moments(model).init(),
        OptimizerKind::AdamWFiveBytes => adamw.in_five_bytes(seed).init(),
        // Its own rates would leave the schedule without effect.
        OptimizerKind::Adafactor => AdafactorConfig::new().with_relative_step(false).init(),
        OptimizerKind::Lamb => LambConfig::new().init(),
        OptimizerKind::Lion => LionConfig::new().init(),
        OptimizerKind::Sgd => SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .init(),
    }
}

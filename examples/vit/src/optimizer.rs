//! The choice between Burn's optimizer and the one that releases gradients.

use anyhow::Result;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::store::RecordError;
use burn::tensor::Tensor;
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};
use burn_lean::{
    DataParallel, ReleaseError, ReleaseOptimizer, SaveStatesError, WithGradientRelease, timeline,
};
use lean_run_folder::CannotWrite;
use std::path::Path;
use std::sync::Arc;
use vit_common::config::{Mode, OptimizerKind, WEIGHT_DECAY};
use vit_common::settings::Settings;

/// Burn's optimizer, with or without gradient release.
///
/// A program that always trains with gradient release has no such choice: it keeps a
/// [`ReleaseOptimizer`] and calls its `backward`.
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
        let adamw = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32);
        let optimizer = match settings.optimizer {
            OptimizerKind::AdamW => adamw.init(),
            OptimizerKind::AdamW8bit => adamw.in_one_pass().with_8_bit_moments(model).init(),
            OptimizerKind::AdamWFiveBytes => adamw.in_five_bytes(settings.seed).init(),
        };
        if settings.mode == Mode::Plain {
            return Self::Plain(optimizer);
        }
        let optimizer = optimizer.with_gradient_release();
        Self::Release(match parallel {
            None => optimizer,
            Some(parallel) => optimizer.with_reduction(Arc::new(parallel.clone())),
        })
    }

    /// Runs backward from the loss. The model after the step.
    pub fn backward<M: Module>(&mut self, rate: f64, loss: Tensor<1>, model: M) -> Result<M> {
        match self {
            Self::Plain(optimizer) => {
                let grads = timeline::backward(|| loss.backward());
                let grads = GradientsParams::from_grads(grads, &model);
                // `optimizer.step(rate, model, grads)`, and a memory timeline knows of it.
                Ok(timeline::step(optimizer, rate, model, grads))
            }
            Self::Release(optimizer) => {
                let stepped = timeline::backward(|| optimizer.try_backward(rate, loss, model));
                Ok(stepped.map_err(ReleaseError::from)?)
            }
        }
    }

    /// Writes the states of all parameters to a file: either optimizer loads those of the other.
    /// Several processes all call it, and the first writes.
    pub fn save(&self, parallel: Option<&DataParallel>, file: &Path) -> Result<()> {
        // Burn's error does not keep the system's, by which `fail` chooses the exit code.
        let cannot = |error: RecordError| CannotWrite::to(file, error);
        match (self, parallel) {
            (Self::Plain(optimizer), _) => optimizer.save(file).map_err(cannot)?,
            (Self::Release(optimizer), None) => {
                optimizer.try_to_record()?.save(file).map_err(cannot)?;
            }
            (Self::Release(optimizer), Some(parallel)) => {
                match parallel.save_states(optimizer, file) {
                    Err(SaveStatesError::File { reason }) => {
                        return Err(CannotWrite::to(file, reason).into());
                    }
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

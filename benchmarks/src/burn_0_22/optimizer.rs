//! Optimizers with the defaults of their configurations.

use benchmarks::subject::OptimizerKind;
use burn_0_22::module::Module;
use burn_0_22::optim::momentum::MomentumConfig;
use burn_0_22::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, LambConfig, LionConfig, ModuleOptimizer, SgdConfig,
};
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};

/// Burn's optimizer of this kind, or one that is used like it. The seed is that of rounding.
pub(super) fn ordinary<M: Module>(kind: OptimizerKind, seed: u64, model: &M) -> ModuleOptimizer {
    let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
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

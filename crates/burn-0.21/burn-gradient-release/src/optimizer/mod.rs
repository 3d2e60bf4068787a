//! The optimizer: arms a model, and finishes the step that backward has begun.

mod accumulator;
mod arming;
mod assign;
mod finish;
mod gradients;
mod group_options;
mod handle;
mod mark;
mod precision;
mod rate;
mod release_optimizer;
mod report;
mod session;
mod shared_state;
mod step_plan;
mod stepper;
mod two_passes;

pub use accumulator::ReleaseAccumulator;
pub use gradients::{
    AdaptiveClippingConfig, AutoClipConfig, GradNorm, GradientRecord, LossScaler, LossScalerConfig,
    LossScalerRecord, NormClipping, ZClipConfig,
};
pub use group_options::GroupOptions;
pub use release_optimizer::{ReleaseOptimizer, WithGradientRelease};
pub use report::{Outcome, StepReport};
pub use two_passes::TwoPasses;

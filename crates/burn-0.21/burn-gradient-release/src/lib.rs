//! Gradient release for Burn: the optimizer steps inside the backward pass.
//!
//! [`GradientRelease`] decorates an autodiff backend, [`ReleaseOptimizer`] wraps an optimizer of
//! Burn. Once a model is [armed](ReleaseOptimizer::arm), each of its parameters is stepped inside
//! `backward` the moment its gradient is complete, and the gradient is freed: at no time do all of
//! them exist. The weights are those of plain Burn, bit for bit.
//!
//! Start with [`ReleaseOptimizer`]; [`ReleaseAccumulator`] is for micro-batches, [`StepReport`]
//! says what a step did, [`ReleaseError`] what is refused. For burn-train's `Learner` there is the
//! crate `burn-gradient-release-train`.

#![forbid(unsafe_code)]

mod backend;
mod backward;
#[cfg(feature = "distributed")]
mod distributed;
mod error;
mod fork;
mod groups;
mod lower;
mod ops;
mod optimizer;
mod planner;
mod slot;
mod subgraph;
mod tape;
mod tensor;
mod util;

pub use backend::{GradientRelease, ReleaseBackend};
pub use error::{Refused, ReleaseError};
pub use groups::{
    Either, ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord, ParamGroup,
    ParamGroupError,
};
pub use optimizer::{
    AdaptiveClippingConfig, AutoClipConfig, GradNorm, GradientRecord, GroupOptions, LossScaler,
    LossScalerConfig, LossScalerRecord, NormClipping, Outcome, ReleaseAccumulator,
    ReleaseOptimizer, StepReport, TwoPasses, WithGradientRelease, ZClipConfig,
};
pub use planner::Recompute;
pub use slot::reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};
pub use tensor::{ReleaseTensor, scope::checkpoint};
pub use util::inner::AutodiffInner;
pub use util::progress::Recomputed;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

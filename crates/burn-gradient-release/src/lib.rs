//! Gradient release for Burn: the optimizer steps inside the backward pass.
//!
//! [`GradientRelease`] decorates an autodiff backend, [`ReleaseOptimizer`] wraps an optimizer of
//! Burn. Once a model is [armed](ReleaseOptimizer::arm), each of its parameters is stepped inside
//! `backward` the moment its gradient is complete, and the gradient is freed: at no time do all of
//! them exist. The weights are those of plain Burn, bit for bit.
//!
//! Start with [`ReleaseOptimizer`]; [`ReleaseAccumulator`] is for micro-batches, [`StepReport`] says
//! what a step did, [`ReleaseError`] what is refused. For burn-train's `Learner` there is the crate
//! `burn-gradient-release-train`.

#![forbid(unsafe_code)]

mod backend;
mod custom;
mod derived;
mod discard;
#[cfg(feature = "distributed")]
mod distributed;
mod fork;
mod group;
mod inner;
mod lend;
mod mark;
mod operands;
mod ops;
mod optimizer;
mod origins;
mod param_groups;
mod parameter;
mod pass;
mod progress;
mod raise;
mod random;
mod recompute;
mod reduction;
mod slot;
mod stale_copy;
mod tape;
mod tensor;
mod uses;

pub use backend::{GradientRelease, ReleaseBackend};
pub use inner::AutodiffInner;
pub use optimizer::{
    AdaptiveClippingConfig, AutoClipConfig, DynOptimizer, GradNorm, GradientRecord,
    GroupAssignment, GroupOptions, LossScaler, LossScalerConfig, LossScalerRecord, NormClipping,
    Outcome, Refused, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, StepReport, TwoPasses,
    WithGradientRelease, ZClipConfig,
};
pub use param_groups::{
    Either, JoinError, ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord, ParamGroup,
    ParamGroupError,
};
pub use progress::Recomputed;
pub use recompute::{Recompute, checkpoint};
pub use reduction::{GradientReduction, PendingGradient, Recipients, ReductionError};
pub use tensor::ReleaseTensor;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

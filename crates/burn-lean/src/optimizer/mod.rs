//! The optimizer: arms a model, and finishes the step that backward has begun.

mod accumulator;
mod arming;
mod claims;
mod error;
#[cfg(feature = "train")]
mod handover;
mod one_param;
mod release_optimizer;
mod report;
mod restoring;
mod survey;

pub use accumulator::ReleaseAccumulator;
pub use error::{Refused, ReleaseError};
pub use release_optimizer::{ReleaseOptimizer, WithGradientRelease};
pub use report::{Outcome, StepReport};
#[cfg(feature = "train")]
pub(crate) use {arming::ordinary, error::expect, handover::Handover, one_param::step_one};

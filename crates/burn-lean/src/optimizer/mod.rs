//! The optimizer: arms a model, and finishes the step that backward has begun.

mod accumulator;
mod arming;
mod claims;
#[cfg(feature = "train")]
mod handover;
mod one_param;
mod ordinary;
mod reducing;
mod release_optimizer;
mod report;
mod restoring;
mod sums_record;
mod survey;

#[cfg(feature = "data-parallel")]
pub(crate) use restoring::as_param;
pub(crate) use restoring::with_value;
pub(crate) use survey::stateless;

pub use accumulator::ReleaseAccumulator;
#[cfg(feature = "train")]
pub(crate) use handover::Handover;
#[cfg(feature = "data-parallel")]
pub(crate) use one_param::record_of;
pub(crate) use one_param::{Ask, ask, may_refuse, step_one};
pub use release_optimizer::{IntoModuleOptimizer, ReleaseOptimizer, WithGradientRelease};
pub use report::{Outcome, StepReport};

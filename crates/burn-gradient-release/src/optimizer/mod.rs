//! The optimizer: arms a model, and finishes the step that backward has begun.

mod accumulator;
mod arming;
mod dyn_optimizer;
mod error;
mod finish;
mod handle;
mod rate;
mod release_optimizer;
mod report;
mod session;
mod shared_state;
mod stepper;

pub use accumulator::ReleaseAccumulator;
pub use dyn_optimizer::DynOptimizer;
pub use error::{Refused, ReleaseError};
pub use release_optimizer::{ReleaseOptimizer, WithGradientRelease};
pub use report::{Outcome, StepReport};

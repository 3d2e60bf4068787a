//! Gradient release for burn-train's `Learner`.
//!
//! [`GradientReleaseStrategy`] takes the place of Burn's single-device strategy, and
//! [`release_learner`] that of `Learner::new`. Schedulers, metrics, early stopping, checkpoints and
//! accumulation stay Burn's. [`metric`] shows what a step did, [`resume`] has what a killed run
//! needs to be picked up exactly.

mod checkpoint;
mod epochs;
mod events;
mod learner;
pub mod metric;
mod monitor;
mod optimize;
mod output;
mod processes;
pub mod resume;
mod stepping;
mod strategy;

pub use checkpoint::BlockingCheckpointingStrategy;
pub use learner::release_learner;
pub use monitor::{PeakMemory, StepMonitor};
pub use output::output;
#[cfg(feature = "data-parallel")]
pub use processes::INTERRUPTED_ELSEWHERE;
pub use strategy::{GradientReleaseStrategy, TwoPassStrategy};

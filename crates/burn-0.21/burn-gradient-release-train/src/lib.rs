//! Gradient release for burn-train's `Learner`, for Burn 0.21. Schedulers, checkpoints,
//! accumulation and metrics go on working.
//!
//! [`GradientReleaseStrategy`] takes the place of Burn's single-device strategy and arms the model
//! between the step of the scheduler and the step of the model, so that the rate of an iteration is
//! the rate its weights are stepped with. [`metric`] shows what a step did, [`resume`] has what a
//! killed run needs to be picked up exactly.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod checkpoint;
mod logs;
pub mod metric;
mod monitor;
mod passes;
mod replication;
pub mod resume;
mod strategy;
#[cfg(test)]
mod tests;

pub use checkpoint::BlockingCheckpointingStrategy;
pub use logs::{log_apart, log_folder};
pub use monitor::{PeakMemory, StepMonitor};
pub use passes::{InOnePass, InTwoPasses, Passes};
pub use replication::{GatherOutput, OneProcess, Replication};
pub use strategy::{GradientReleaseStrategy, INTERRUPTED_ELSEWHERE};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! A vision transformer trained with gradient release.
//!
//! [`train`] shows what gradient release requires of a program with Burn's learner, and [`backend`]
//! what it requires of the types; the rest is an ordinary Burn program. The package `benchmarks`
//! measures memory and time of a training step on the same model.

pub mod backend;
pub mod config;
pub mod data;
pub mod device;
pub mod digest;
pub mod memory;
pub mod metrics;
pub mod mode;
pub mod model;
pub mod run;
pub mod stopping;
pub mod train;

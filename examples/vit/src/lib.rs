//! A vision transformer trained with gradient release.
//!
//! [`train`] is the room to read for what gradient release asks of a program with Burn's learner, and
//! [`backend`] for what it asks of the types; everything else is a Burn program like any other. What a
//! step needs in memory and time is measured by the package `benchmarks`, on the same model.

pub mod artifacts;
pub mod backend;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod digest;
pub mod memory;
pub mod metric_log;
pub mod mode;
pub mod model;
pub mod panics;
pub mod progress;
pub mod rng;
pub mod stopping;
pub mod terminal;
pub mod train;

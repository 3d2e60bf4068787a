//! A vision transformer trained with gradient release.
//!
//! `vit train` trains with Burn's learner and `vit bench` measures a loop written by hand. [`train`]
//! is the room to read for what gradient release asks of a program with a learner, [`mode`] for what
//! it asks of a loop; everything else is a Burn program like any other.

pub mod artifacts;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod config;
pub mod data;
pub mod digest;
pub mod memory;
pub mod metric_log;
pub mod mode;
pub mod model;
pub mod panics;
pub mod progress;
pub mod rng;
pub mod stopping;
pub mod train;

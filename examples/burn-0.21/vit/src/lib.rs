//! A vision transformer on Burn 0.21, its data and its settings, which the package `benchmarks` also
//! measures.
//!
//! The training is in `src/program`: it is compiled for each backend and optimizer, which takes
//! minutes, and so not into what uses this library.

pub mod config;
pub mod data;
pub mod device;
pub mod digest;
pub mod memory;
pub mod model;
pub mod schedule;
pub mod stopping;

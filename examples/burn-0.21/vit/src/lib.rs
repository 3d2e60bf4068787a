//! A vision transformer on Burn 0.21 and its data, which the package `benchmarks` also measures.
//!
//! The training is in `main.rs`, `backend.rs` and `train.rs`: it is compiled for each backend and
//! optimizer, which takes minutes, and so not into what uses this library.

pub mod data;
pub mod memory;
pub mod model;
pub mod schedule;

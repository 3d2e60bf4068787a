//! What the vision transformer examples share: `vit-0-21`, for Burn 0.21, and `vit`, for Burn 0.22.
//!
//! Nothing here depends on Burn.

#![forbid(unsafe_code)]

pub mod config;
pub mod data;
pub mod digest;
pub mod memory;
pub mod parallel;
pub mod progress;
pub mod results;
pub mod rng;
pub mod run;
pub mod settings;
pub mod terminal;

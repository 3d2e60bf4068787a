//! What the vision transformer examples share: `vit`, for Burn 0.22, and `vit-0-21`, for Burn 0.21.
//!
//! Nothing here depends on Burn.

#![forbid(unsafe_code)]

pub mod config;
pub mod data;
pub mod digest;
pub mod memory;
pub mod rng;
pub mod run;
pub mod settings;

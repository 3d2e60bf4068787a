//! What the vision transformer examples share: `vit-0-21`, for Burn 0.21, and `vit`, for Burn 0.22.
//!
//! Nothing here depends on Burn.

#![forbid(unsafe_code)]

pub mod config;
pub mod data;
pub mod digest;
pub mod files;
pub mod launching;
pub mod lock;
pub mod memory;
pub mod model;
pub mod parallel;
pub mod results;
pub mod rng;
pub mod settings;
pub mod small_disk;
pub mod summary;
pub mod terminal;

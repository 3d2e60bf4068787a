//! A vision transformer on Burn 0.22, trained plainly or with gradient release.
//!
//! [`train`] is an ordinary Burn loop. [`release`] is what gradient release adds to it, and
//! [`model`] has the blocks that backward can recompute.

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod device;
pub mod digest;
pub mod memory;
pub mod model;
pub mod progress;
pub mod release;
pub mod run_folder;
pub mod schedule;
pub mod train;

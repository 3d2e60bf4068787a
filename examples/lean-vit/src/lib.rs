//! A vision transformer on Burn 0.22, trained plainly or with gradient release.
//!
//! [`train`] is the loop. [`release`] is all that depends on `burn-lean`: the rest is an ordinary Burn
//! program.

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

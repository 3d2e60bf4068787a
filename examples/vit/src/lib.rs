//! A vision transformer on Burn 0.22, trained plainly or with gradient release.
//!
//! Read [`train`] first: an ordinary Burn loop. [`optimizer`] is what gradient release adds to it,
//! and [`model`] has the blocks that the backward pass can recompute. [`run`] begins and ends a run
//! in its folder.

#![forbid(unsafe_code)]

pub mod device;
pub mod digest;
pub mod memory;
pub mod model;
pub mod optimizer;
pub mod run;
pub mod settings;
pub mod train;

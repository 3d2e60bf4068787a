//! A vision transformer on Burn 0.22, trained plainly or with gradient release.
//!
//! Read [`step`] first: an ordinary Burn step, and what gradient release adds to it with an
//! [`optimizer`]. [`model`] has the blocks that the backward pass can recompute. [`train`] is the loop
//! over epochs, and `main.rs` has the options.

#![forbid(unsafe_code)]

pub mod device;
pub mod fit;
pub mod model;
pub mod optimizer;
pub mod step;
pub mod train;

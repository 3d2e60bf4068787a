//! The arithmetic of optimizers, of clipping, of loss scaling and of operations over slices, and the
//! turns of replicas, without Burn.
//!
//! `burn-gradient-release-optim` (Burn 0.21) and `burn-lean` (Burn 0.22) give it their tensors,
//! states and records. Nothing here depends on a version of Burn, so that each formula stands in
//! one place: the kernels of `optim::cube` too, which are compiled for each version of cubecl.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod clipping;
mod exact;
pub mod groups;
pub mod nf4;
pub mod norm;
pub mod scaling;
mod settings;
#[cfg(feature = "host")]
pub mod slices;

pub mod optim;
pub mod turns;

pub use settings::OutOfRange;

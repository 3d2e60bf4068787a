//! What goes into a run of a vision transformer, whatever version of Burn it is for: its options and its images.
//!
//! The programs `vit`, for Burn 0.22, and `vit-0-21`, and the benchmarks that compare both.

#![forbid(unsafe_code)]

mod images;
mod options;
mod processes;
mod rng;

pub use images::{Dataset, Image, Split, labels};
pub use options::{
    BackendKind, Checkpointing, MAY_CHANGE, Mode, Operations, OptimizerKind, Options, Preset,
    Settings, VitConfig, WEIGHT_DECAY, mib, rate,
};
pub use processes::{agree, join, local_rank};
pub use rng::SeededRng;

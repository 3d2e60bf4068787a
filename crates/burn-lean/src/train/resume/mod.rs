//! Resuming a killed run exactly from its last checkpoint.
//!
//! From 0.22 on, Burn's checkpoint files are complete or absent. [`resume_point`] finds the epoch
//! to give to `.checkpoint(..)`; a [`ResumedDataLoader`] shuffles as the uninterrupted run would
//! have. Neither needs gradient release.

mod data_loader;
mod resume_point;

pub use data_loader::ResumedDataLoader;
pub use resume_point::resume_point;

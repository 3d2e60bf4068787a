//! What a killed run needs to be picked up exactly where its last checkpoint is.
//!
//! From 0.22 on Burn's checkpoints are whole files or not there. [`resume_point`] finds the epoch
//! to give to `.checkpoint(..)`; a [`ResumedDataLoader`] shuffles as the uninterrupted run would
//! have. Neither needs gradient release.

mod data_loader;
mod resume_point;

pub use data_loader::ResumedDataLoader;
pub use resume_point::resume_point;

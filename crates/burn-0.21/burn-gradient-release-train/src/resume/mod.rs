//! Resuming a killed run exactly where its last checkpoint is.
//!
//! Burn's file checkpointer with an [`AtomicFileRecorder`] leaves only whole files, with their
//! checksums; [`resume_point`] compares these, and finds the epoch to give to `.checkpoint(..)`; a
//! [`ResumedDataLoader`] shuffles as the uninterrupted run would have. None of it needs gradient
//! release.

mod data_loader;
mod recorder;
#[cfg(test)]
mod tests;

pub use data_loader::ResumedDataLoader;
#[doc(inline)]
pub use lean_run_folder::{resume_point, resume_point_of_run};
pub use recorder::AtomicFileRecorder;

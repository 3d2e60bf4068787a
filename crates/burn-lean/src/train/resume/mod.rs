//! Resuming a killed run exactly from its last checkpoint.
//!
//! From 0.22 on Burn's checkpoints are whole files or not there. [`checked_checkpointers`] writes
//! the checksum of each beside it; [`resume_point`] compares these, and finds the epoch to give to
//! `.checkpoint(..)`; a [`ResumedDataLoader`] shuffles as the uninterrupted run would have. None of
//! it needs gradient release.

mod checkpointer;
mod data_loader;

pub use checkpointer::{
    CheckedFileCheckpointer, checked_checkpointers, checked_checkpointers_of_run,
};
pub use data_loader::ResumedDataLoader;
#[doc(inline)]
pub use lean_run_folder::{resume_point, resume_point_of_run};

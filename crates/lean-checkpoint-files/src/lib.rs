#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod checksum;
mod disk;
mod epochs;

pub use disk::{publish, remove};
pub use epochs::resume_point;

/// Whatever file name begins so was never finished.
pub const UNFINISHED: &str = "unfinished-";

//! A recording: which memory was held, from when to when, and for what.
//!
//! Time is counted in *ticks*: each allocation, each release and each mark is one tick, numbered
//! from
//! 0. A holder lives in the ticks `from..until`. The memory in use after tick `t` is that of all
//! holders whose range contains `t`.

mod data;
mod error;
mod file;
mod format;

pub use data::{Category, Holder, Parameter, Phase, PhaseKind, Sample, Snapshot};
pub use error::SnapshotError;
pub use format::VERSION;

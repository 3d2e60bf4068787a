//! Memory and time of a training step: Burn, gradient release, PyTorch and optimi side by side.
//!
//! [`plan`] decides what is measured, and [`suite`] runs a worker for each line of it: this program
//! again, for either version of Burn, or Python. A worker answers with what [`measure`] has counted.
//! From these [`results`] comes the [`table`].

#![forbid(unsafe_code)]

pub mod available;
pub mod cli;
pub mod device;
pub mod machine;
pub mod measure;
pub mod options;
pub mod plan;
pub mod process;
pub mod pytorch;
pub mod results;
pub mod shape;
pub mod subject;
pub mod suite;
pub mod table;

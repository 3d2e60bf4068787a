//! Memory and time of a training step: Burn, gradient release, PyTorch and optimi side by side.
//!
//! [`suite`] decides what is measured, [`measure`] is what happens in the process of a run, and
//! [`report`] tells the outcome: a table, a JSON file and a plot.

pub mod cli;
pub mod gpt;
pub mod machine;
pub mod measure;
pub mod process;
pub mod pytorch;
pub mod report;
pub mod results;
pub mod shape;
pub mod stats;
pub mod stepper;
pub mod suite;
pub mod timeline;
pub mod vocabulary;
pub mod workload;

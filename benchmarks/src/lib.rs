//! Memory and time of a training step: Burn, gradient release, PyTorch and optimi side by side.
//!
//! [`plan`] decides what is measured, [`suite`] executes the plan, and [`measure`] runs in the
//! process of each run, or `burn_0_22` for Burn 0.22. Their output is [`results`], and [`report`]
//! turns it into a table and a plot. No module imports one that imports it.

pub mod arithmetic;
pub mod available;
#[cfg(feature = "flex")]
pub mod burn_0_22;
pub mod cli;
pub mod discard;
pub mod encoder;
pub mod gpt;
pub mod loss;
pub mod machine;
pub mod measure;
pub mod optimizer;
pub mod plan;
pub mod process;
pub mod pytorch;
pub mod report;
pub mod results;
pub mod scale;
pub mod shape;
pub mod spec;
mod stages;
pub mod stats;
pub mod stepper;
pub mod suite;
pub mod timeline;
pub mod value_name;
pub mod vocabulary;
pub mod workload;

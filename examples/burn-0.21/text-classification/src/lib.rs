//! A text classifier trained with Burn's `Learner`, before and after gradient release.
//!
//! The program follows Burn's example of the same name. A grammar generates its corpus.

pub mod data;
pub mod log;
pub mod memory;
pub mod model;
pub mod renderer;
pub mod training;
pub mod weights;

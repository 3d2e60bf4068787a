//! A text classifier trained with Burn's `Learner`, before and after gradient release.
//!
//! In the manner of Burn's example of the same name, on a corpus that is made up on the spot.

pub mod data;
pub mod log;
pub mod memory;
pub mod model;
pub mod renderer;
pub mod training;
pub mod weights;

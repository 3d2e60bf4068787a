//! Optimizers: their rules, and how they run over slices of memory.
//!
//! A [`Rule`] is the step of one element. It runs on single numbers and on whole tensors
//! ([`Number`]), in one pass over slices (`host`), or becomes the [`Program`](program::Program) of
//! a kernel (`cube`). The optimizer's own type in [`rules`] computes the values of a step, such as
//! the correction of a bias.

mod accumulation;
mod configuration;
#[cfg(any(feature = "cubecl-0-10", feature = "cubecl-0-11"))]
pub mod cube;
mod factored;
mod halves;
#[cfg(feature = "host")]
pub mod host;
mod noise;
mod number;
mod powers;
pub mod program;
mod rule;
pub mod rules;
mod storage;

pub use accumulation::{CannotAccumulate, MicroBatch, MicroBatches, MomentDecay};
pub use configuration::configuration;
pub use factored::{Factored, WholeTensor, assert_shape};
pub use halves::{BEYOND_F16, BIAS_OF_F16, NORMAL_IN_F16, Split};
#[cfg(any(feature = "cubecl-0-10", feature = "cubecl-0-11"))]
use noise::{FRACTIONS, GOLDEN_RATIO};
pub use noise::{MIXING, Noise};
pub use number::{Clip, Number};
pub use powers::{BLOCK, LEAST_SCALE, WORDS, pack, unpack, words};
pub use rule::{Measure, MomentsAlone, Rule};
pub use storage::{Kind, Moments, Storage};

pub use crate::settings::expect_threshold;

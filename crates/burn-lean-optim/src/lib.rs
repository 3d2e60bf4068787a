//! Optimizers in one pass over memory, and small ones.
#![forbid(unsafe_code)]

mod backend;
mod dynamic_map;
#[cfg(feature = "flex")]
mod flex;
mod moment;
mod number;
mod optim;
mod pass;
mod rule;

pub use backend::{Clip, LeanBackend, Measure, Operands, Rounding, States, Stepped};
pub use dynamic_map::DynamicMap;
pub use moment::{EightBit, Format, Moment, MomentItem};
pub use number::Number;
pub use optim::*;
pub use rule::Rule;

#[cfg(feature = "ndarray")]
impl LeanBackend for burn::backend::NdArray {}

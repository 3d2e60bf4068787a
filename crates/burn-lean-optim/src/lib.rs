//! Optimizers in one pass over memory, and small ones.
#![forbid(unsafe_code)]

mod backend;
mod bf16;
mod dynamic_map;
#[cfg(feature = "flex")]
mod flex;
mod moment;
mod number;
mod optim;
mod pass;
mod rule;

pub use backend::{Clip, LeanBackend, Measure, Operands, RoundStochastically, States, Stepped};
pub use bf16::{Bf16State, Bf16Weights, Kahan, Rounding, Stochastic};
pub use dynamic_map::DynamicMap;
pub use moment::{EightBit, Format, Moment, MomentItem};
pub use number::Number;
pub use optim::*;
pub use rule::Rule;

#[cfg(feature = "ndarray")]
impl LeanBackend for burn::backend::NdArray {}

//! Optimizers in one pass over memory, and small ones, for Burn 0.21.
//!
//! - Burn's optimizers [in one pass](InOnePass): the same weights and records, without temporaries.
//! - Optimizers that Burn 0.21 lacks: [`StableAdamW`], [`Lion`], [`RAdam`], [`Adafactor`] (and
//!   [AdaLomo](AdaLomoConfig)), [`Came`].
//! - [Moments in 8 bits](EightBitMoments) or [in bf16](Lean::with_bf16_moments).
//! - [Accumulation in the moments](AccumulateInMoments), without a sum of gradients.
//! - [Weights in bf16](Bf16Weights), stepped in 32 bits.
//!
//! All are `SimpleOptimizer`s of Burn. Those that step element by element are a [`Rule`] each,
//! which runs on single numbers or becomes a kernel where the backend steps [in
//! place](LeanBackend), and runs on Burn's tensors elsewhere.
//!
//! Features: `flex` for the pass on the processor; `cubecl` for the one on wgpu and CUDA, fused or
//! not.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod accumulation;
mod backend;
mod bf16;
#[cfg(feature = "cubecl")]
mod cube;
#[cfg(feature = "flat-linear")]
mod flat_linear;
#[cfg(feature = "flex")]
mod flex;
mod moment;
mod number;
mod optim;
mod settings;
mod step;

pub use accumulation::{AccumulateInMoments, AccumulatingInMoments, AccumulatingState};
pub use backend::{LeanBackend, Operands, RoundToBf16, States, Stepped, Types};
pub use bf16::{Bf16State, Bf16Weights, LowerHalves, MasterWeights, Rounding, Stochastic};
pub use lean_arithmetic::optim::{
    CannotAccumulate, Clip, Kind, Measure, MomentDecay, Noise, Number, Rule,
};
pub use moment::{EightBit, Format, Moment, MomentItem};
pub use optim::*;

#[cfg(feature = "ndarray")]
impl LeanBackend for burn::backend::NdArray {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

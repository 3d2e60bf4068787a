//! Training that fits, for Burn 0.22 and later: gradient release and recomputed activations.
//!
//! [`ReleaseOptimizer`] steps the parameters of a model inside `backward`, each the moment its
//! gradient is complete, and frees the gradient: at no time do all of them exist. The weights are
//! those of plain Burn, bit for bit. [`checkpoint`] runs a part of a model without keeping its
//! activations, which backward computes again; it is useful alone, too.
//!
//! Start with [`ReleaseOptimizer`]; [`ReleaseAccumulator`] is for micro-batches, [`StepReport`]
//! says what a step did, [`ReleaseError`] what is refused. With the feature `optim`, the module
//! `optim` has optimizers in one pass over memory, and such with small states.

#![forbid(unsafe_code)]

mod backend;
#[cfg(feature = "optim")]
pub mod optim;
mod optimizer;
mod parameter;
mod recompute;
mod session;
mod slot;
mod tape;

pub use optimizer::{
    Outcome, Refused, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, StepReport,
    WithGradientRelease,
};
pub use recompute::{
    Budget, BudgetPass, DecoderMasks, MapTensor, Planned, Tensors, checkpoint, checkpoint_chunks,
    checkpoint_decoder, checkpoint_each, checkpoint_encoder,
};
pub use session::FirstPass;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/burn-0-22.md")]
struct Guide;

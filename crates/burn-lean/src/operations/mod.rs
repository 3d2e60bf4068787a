//! Operations that keep little for the backward pass.
//!
//! Burn's autodiff treats an operation as the sum of its parts, and keeps the tensors that each
//! part needs. These are one node of the tape each, with a backward pass written by hand: they keep
//! their operands, and compute the rest again, in chunks of rows. They are written with Burn's
//! tensors, so they run on every backend that burn-lean is compiled with; and they work without
//! gradient release, with it, and within [`checkpoint`](crate::checkpoint). On Flex, those of `f32`
//! are loops over slices (`flex`).

mod activation;
mod attention;
mod chunks;
mod cross_entropy;
mod dropout;
mod embedding;
mod feed_forward;
#[cfg(feature = "flex")]
mod flex;
mod gated;
mod linear;
pub mod nn;
mod node;
mod norm;
mod product;
mod rotary;
mod threads;

pub use activation::{gelu, gelu_approximate, log_softmax, quiet_softmax, silu, softmax};
pub use attention::{Attention, attention};
pub use cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
pub use dropout::dropout;
pub use embedding::embedding;
pub use gated::{geglu, geglu_approximate, swiglu};
pub use linear::linear;
pub use norm::{group_norm, layer_norm, rms_norm};
pub use rotary::rotary_encoding;

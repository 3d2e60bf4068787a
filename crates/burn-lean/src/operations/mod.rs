//! Operations that save fewer tensors for the backward pass.
//!
//! Burn's autodiff divides an operation into parts, and keeps the tensors that each part needs.
//! Each operation here is one node of the tape, with a backward pass written by hand. It keeps its
//! operands, and computes the rest again in chunks of rows. The operations are written with Burn's
//! tensors, so they run on every backend that burn-lean is compiled with. They work with and
//! without gradient release, and within [`checkpoint`](crate::checkpoint). On Flex, those of `f32`
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
mod lora;
mod nf4;
pub mod nn;
mod node;
mod norm;
mod product;
mod rotary;
mod threads;
mod weight;

pub use activation::{gelu, gelu_approximate, log_softmax, quiet_softmax, silu, softmax};
pub use attention::{Attention, attention};
pub use cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
pub use dropout::dropout;
pub use embedding::embedding;
pub use feed_forward::swiglu_linear;
pub use gated::{geglu, geglu_approximate, swiglu};
pub use linear::linear;
pub use lora::adapted_linear;
pub use nf4::{Nf4, Nf4State, Nf4Weight, PackError};
#[cfg(feature = "safetensors")]
pub(crate) use nf4::{PackedWeights, packed_weights};
pub use norm::{group_norm, layer_norm, rms_norm};
pub use rotary::rotary_encoding;
pub use weight::LinearWeight;

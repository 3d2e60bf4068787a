//! Burn's [`nn`](burn::nn) with modules that save fewer tensors for the backward pass.
//!
//! One line of a model changes: `use burn_lean::operations::nn` in place of `use burn::nn`.
//! Whatever is not here is Burn's. The modules have the names, the fields and the configurations of
//! Burn's, so a record of one is a record of the other.
//!
//! ```
//! use burn::module::Module;
//! use burn::tensor::{Device, Tensor};
//! use burn_lean::operations::nn;
//!
//! #[derive(Module, Debug)]
//! struct Mlp {
//!     norm: nn::LayerNorm,
//!     linear: nn::Linear,
//!     gelu: nn::Gelu,
//!     embedding: nn::Embedding,
//! }
//!
//! impl Mlp {
//!     fn forward(&self, x: Tensor<3>) -> Tensor<3> {
//!         self.gelu.forward(self.linear.forward(self.norm.forward(x)))
//!     }
//! }
//!
//! let device = Device::flex();
//! let mlp = Mlp {
//!     norm: nn::LayerNormConfig::new(8).init(&device),
//!     linear: nn::LinearConfig::new(8, 16).init(&device),
//!     gelu: nn::Gelu::new(),
//!     embedding: nn::EmbeddingConfig::new(10, 8).init(&device),
//! };
//! assert_eq!(mlp.forward(Tensor::zeros([2, 3, 8], &device)).dims(), [2, 3, 16]);
//! ```
//!
//! A module of Burn's becomes one of these by `into()`, and back; [`LeanModule`] does it for
//! containers of them.

pub mod activation;
pub mod attention;
mod configuration;
mod dropout;
mod embedding;
mod gelu;
mod lean;
mod linear;
pub mod norm;
mod positions;
mod rotary_scaling;
mod same_fields;
mod swiglu;
pub mod transformer;

pub use burn::nn::*;

pub use dropout::{Dropout, DropoutConfig};
pub use embedding::{Embedding, EmbeddingConfig};
pub use gelu::Gelu;
pub use lean::LeanModule;
pub use linear::{Linear, LinearConfig};
pub use norm::{GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
pub use positions::{
    PositionalEncoding, PositionalEncodingConfig, RotaryEncoding, RotaryEncodingConfig,
};
pub use rotary_scaling::RotaryScaling;
pub use swiglu::{SwiGlu, SwiGluConfig};

//! Burn's [`nn::activation`](burn::nn::activation), with activations that keep their input alone.

pub use burn::nn::activation::*;

pub use super::{Gelu, SwiGlu, SwiGluConfig};

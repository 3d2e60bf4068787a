//! The embedding layer.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::embedding;

configuration! {
    EmbeddingConfig(burn::nn::EmbeddingConfig) {
        new(n_embedding: usize, d_model: usize),
        with_initializer: Initializer,
    }
    init(device: &Device) -> Embedding
}

/// Burn's [`Embedding`](burn::nn::Embedding) as [one operation](embedding), whose gradient adds up in
/// f32.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[n_embedding, d_model]`
    pub weight: Param<Tensor<2>>,
}

same_fields!(Embedding, burn::nn::Embedding, { weight });

impl Embedding {
    /// The vectors of tokens.
    ///
    /// # Shapes
    ///
    /// - `input`: `[batch, time]`
    /// - output: `[batch, time, d_model]`
    pub fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        embedding(self.weight.val(), input)
    }
}

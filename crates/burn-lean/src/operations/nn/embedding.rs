//! The embedding layer.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::same_fields::same_fields;
use crate::operations::embedding;

/// Configuration of an [`Embedding`] layer: that of Burn's
/// [`EmbeddingConfig`](burn::nn::EmbeddingConfig).
#[derive(Config, Debug)]
pub struct EmbeddingConfig {
    /// The number of embedding vectors.
    pub n_embedding: usize,
    /// The size of each vector.
    pub d_model: usize,
    /// Initializer of the parameters.
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

impl EmbeddingConfig {
    /// A layer with these settings.
    pub fn init(&self, device: &Device) -> Embedding {
        burn::nn::EmbeddingConfig::new(self.n_embedding, self.d_model)
            .with_initializer(self.initializer.clone())
            .init(device)
            .into()
    }
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

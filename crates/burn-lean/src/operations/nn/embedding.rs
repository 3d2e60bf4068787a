//! The embedding layer.

use burn::module::{LoraAdapter, Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::{embedding, linear};

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
    /// The vectors of tokens. Of an adapter, those of its factor, so nothing is as large as the table.
    ///
    /// # Shapes
    ///
    /// - `input`: `[batch, time]`
    /// - output: `[batch, time, d_model]`
    pub fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        let Some(adapter) = self.adapter() else {
            return embedding(self.weight.val(), input);
        };
        let low_rank = embedding(adapter.a.val(), input.clone());
        let delta = linear(low_rank, adapter.b.val(), None);
        embedding(self.weight.base(), input).cast(delta.dtype()) + delta * adapter.scale
    }

    /// Of a frozen weight in floats.
    fn adapter(&self) -> Option<&LoraAdapter> {
        let adapter = self.weight.adapter()?;
        let is_float = self.weight.base().dtype().is_float();
        (is_float && !self.weight.is_require_grad()).then_some(adapter)
    }
}

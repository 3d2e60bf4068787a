//! The embedding layer.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::backend::constant;
use crate::operations::weight::{Weight, adapter_of, is_adapted};
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
        let adapter = adapter_of(&self.weight);
        let base = is_adapted(&self.weight).then(|| self.base(&input));
        match (base.flatten(), adapter) {
            (Some(base), None) => base,
            (Some(base), Some(adapter)) => {
                let low_rank = embedding(adapter.a.val(), input);
                let delta = linear(low_rank, adapter.b.val(), None) * adapter.scale;
                base.cast(delta.dtype()) + delta
            }
            (None, _) => embedding(self.weight.val(), input),
        }
    }

    /// The vectors of a frozen weight without its adapter; `None` if it is trained or quantized.
    fn base(&self, input: &Tensor<2, Int>) -> Option<Tensor<3>> {
        match Weight::frozen(&self.weight)? {
            Weight::Packed(packed) if !packed.is_transposed() => {
                let [batch, time] = input.dims();
                let vectors = packed.select(input.clone().inner().flatten::<1>(0, 1));
                let [_, width] = vectors.dims();
                let vectors = vectors.reshape([batch, time, width]);
                Some(constant(vectors, &input.device()))
            }
            Weight::Tensor(weight) if weight.dtype().is_float() => {
                Some(embedding(self.weight.base(), input.clone()))
            }
            _ => None,
        }
    }
}

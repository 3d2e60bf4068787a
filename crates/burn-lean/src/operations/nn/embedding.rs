//! The embedding layer.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use crate::operations::frozen::Frozen;
use crate::operations::lora::adapter_of;
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
        let Some(adapter) = adapter_of(&self.weight) else {
            return self
                .base(input)
                .unwrap_or_else(|input| embedding(self.weight.val(), input));
        };
        match self.base(input.clone()) {
            Ok(base) => {
                let low_rank = embedding(adapter.a.val(), input);
                let delta = linear(low_rank, adapter.b.val(), None) * adapter.scale;
                base.cast(delta.dtype()) + delta
            }
            Err(input) => embedding(self.weight.val(), input),
        }
    }

    /// The vectors of a frozen weight without its adapter; the tokens back, if it is trained or quantized.
    fn base(&self, input: Tensor<2, Int>) -> Result<Tensor<3>, Tensor<2, Int>> {
        match Frozen::of(&self.weight) {
            Some(Frozen::Packed(packed)) => {
                let device = input.device();
                let [batch, time] = input.dims();
                let vectors = packed.select(input.inner().flatten::<1>(0, 1));
                let [_, width] = vectors.dims();
                let vectors = vectors.reshape([batch, time, width]);
                Ok(match device.is_autodiff() {
                    true => Tensor::from_inner(vectors),
                    false => vectors,
                })
            }
            Some(Frozen::Tensor(weight)) if weight.dtype().is_float() => {
                Ok(embedding(self.weight.base(), input))
            }
            _ => Err(input),
        }
    }
}

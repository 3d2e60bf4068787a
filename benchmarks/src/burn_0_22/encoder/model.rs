//! The model, made of the modules of `super::nn`.

use super::cross_entropy;
use super::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderLayer,
};
use super::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use crate::burn_0_22::scorer::Scorer;
use crate::encoder::EncoderConfig;
use crate::results::LossChunk;
// The derive macro names the crate `burn`, which is Burn 0.21 elsewhere in this package.
use burn_0_22 as burn;
use burn_0_22::module::Module;
use burn_0_22::tensor::{Device, Int, Tensor};
use burn_lean::checkpoint;
use vit_0_21::rng::SeededRng;

/// An encoder that scores the tokens at every position.
#[derive(Module, Debug)]
pub(in crate::burn_0_22) struct Encoder {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    recomputes_layers: bool,
    head: Linear,
}

impl Scorer<EncoderConfig> for Encoder {
    fn new(config: &EncoderConfig, recomputes_layers: bool, device: &Device) -> Self {
        let EncoderConfig {
            vocabulary,
            context,
            dim,
            depth,
            heads,
            hidden,
            dropout,
        } = *config;
        Self {
            tokens: EmbeddingConfig::new(vocabulary, dim).init(device),
            positions: EmbeddingConfig::new(context, dim).init(device),
            encoder: TransformerEncoderConfig::new(dim, hidden, heads, depth)
                .with_dropout(dropout)
                .init(device),
            recomputes_layers,
            head: LinearConfig::new(dim, vocabulary).init(device),
        }
    }

    fn loss(
        &self,
        ids: Tensor<2, Int>,
        labels: Tensor<1, Int>,
        chunk: LossChunk,
        seed: u64,
    ) -> Tensor<1> {
        cross_entropy(&self.head, self.hidden(ids, seed), labels, chunk)
    }
}

impl Encoder {
    /// What the head scores: `[batch, context, dim]`.
    ///
    /// As `TransformerEncoder::forward`, which has no place for a scope. Each layer has a seed of
    /// its own, as a scope has a stream of its own: the masks do not depend on what is recomputed.
    fn hidden(&self, ids: Tensor<2, Int>, seed: u64) -> Tensor<3> {
        let [_, context] = ids.dims();
        let places = Tensor::arange(0..context as i64, &ids.device()).unsqueeze();
        let mut hidden = self.tokens.forward(ids) + self.positions.forward(places);
        for (number, layer) in self.encoder.layers.iter().enumerate() {
            let seed = SeededRng::new(&[seed, number as u64]).next_u64();
            let forward = move |layer: &TransformerEncoderLayer, hidden: Tensor<3>| {
                hidden.device().seed(seed);
                layer.forward(hidden, None, None)
            };
            hidden = if self.recomputes_layers {
                checkpoint(layer, hidden, forward)
            } else {
                forward(layer, hidden)
            };
        }
        hidden
    }
}

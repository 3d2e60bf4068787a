//! The language model, made of the modules of `super::nn`: that of Burn 0.21.

use super::cross_entropy;
use super::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderLayer,
};
use super::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use crate::burn_0_22::models::{Trainee, labels};
use benchmarks::shape::{HostBatch, LanguageConfig};
use benchmarks::subject::{Burn, Checkpointing};
// The derive macro names the crate `burn`, which is Burn 0.21 elsewhere in this package.
use burn_0_22 as burn;
use burn_0_22::module::{Initializer, Module};
use burn_0_22::nn::attention::generate_autoregressive_mask;
use burn_0_22::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_lean::checkpoint;
use vit_inputs::SeededRng;

/// A decoder or an encoder.
#[derive(Module, Debug)]
pub(in crate::burn_0_22) struct Language {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    recomputes_blocks: bool,
    /// Of a decoder.
    norm: Option<LayerNorm>,
    head: Linear,
}

impl Trainee for Language {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, checkpointing: Checkpointing, device: &Device) -> Self {
        let (dim, is_decoder) = (shape.dim, shape.is_decoder);
        let mut tokens = EmbeddingConfig::new(shape.vocabulary, dim);
        let mut positions = EmbeddingConfig::new(shape.context, dim);
        let mut head = LinearConfig::new(dim, shape.vocabulary).with_bias(!is_decoder);
        if is_decoder {
            let small = Initializer::Normal {
                mean: 0.0,
                std: 0.02,
            };
            tokens.initializer = small.clone();
            positions.initializer = small.clone();
            head.initializer = small;
        }
        Self {
            tokens: tokens.init(device),
            positions: positions.init(device),
            encoder: TransformerEncoderConfig::new(dim, shape.hidden, shape.heads, shape.depth)
                .with_dropout(shape.dropout)
                .with_norm_first(is_decoder)
                .init(device),
            recomputes_blocks: checkpointing == Checkpointing::Blocks,
            norm: is_decoder.then(|| LayerNormConfig::new(dim).init(device)),
            head: head.init(device),
        }
    }

    /// As `TransformerEncoder::forward`, which has no place for a scope. Each layer has a seed of
    /// its own, as a scope has a stream of its own: the masks do not depend on what is recomputed.
    fn loss(&self, batch: HostBatch, run: &Burn, seed: u64, device: &Device) -> Tensor<1> {
        let [size, context] = [batch.shape[0], batch.shape[1]];
        let places = Tensor::arange(0..context as i64, device).unsqueeze();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(batch.tokens, batch.shape), device);
        let mut hidden = self.tokens.forward(ids) + self.positions.forward(places);
        let mask = || generate_autoregressive_mask(size, context, device);
        let past: Option<Tensor<3, Bool>> = self.norm.is_some().then(mask);
        for (number, layer) in self.encoder.layers.iter().enumerate() {
            let seed = SeededRng::new(&[seed, number as u64]).next_u64();
            let forward = move |layer: &TransformerEncoderLayer, (hidden, past): (Tensor<3>, _)| {
                hidden.device().seed(seed);
                layer.forward(hidden, None, past)
            };
            let input = (hidden, past.clone());
            hidden = if self.recomputes_blocks {
                checkpoint(layer, input, forward)
            } else {
                forward(layer, input)
            };
        }
        if let Some(norm) = &self.norm {
            hidden = norm.forward(hidden);
        }
        let labels = labels(batch.labels, device);
        cross_entropy(&self.head, hidden, labels, run.loss_chunk)
    }
}

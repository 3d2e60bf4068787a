//! The language models, made of the modules of `super::nn`: those of Burn 0.21.

use super::cross_entropy;
use super::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use super::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderLayer,
};
use super::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use crate::burn_0_22::models::{Trainee, labels};
use benchmarks::shape::{HostBatch, LanguageConfig};
use benchmarks::subject::Burn;
// The derive macro names the crate `burn`, which is Burn 0.21 elsewhere in this package.
use burn_0_22 as burn;
use burn_0_22::module::{Initializer, Module, Param};
use burn_0_22::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_lean::checkpoint;
use vit::model::Recomputed;
use vit_common::rng::SeededRng;

/// A decoder in the style of GPT-2, without dropout.
#[derive(Module, Debug)]
pub(in crate::burn_0_22) struct Gpt {
    tokens: Embedding,
    positions: Param<Tensor<3>>,
    blocks: Vec<Block>,
    recomputes_blocks: bool,
    norm: LayerNorm,
    head: Linear,
}

impl Trainee for Gpt {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, recomputed: Recomputed, device: &Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Self {
            tokens: EmbeddingConfig::new(shape.vocabulary, shape.dim)
                .with_initializer(small.clone())
                .init(device),
            positions: small.init([1, shape.context, shape.dim], device),
            blocks: (0..shape.depth)
                .map(|_| Block::new(shape, device))
                .collect(),
            recomputes_blocks: recomputed != Recomputed::Nothing,
            norm: LayerNormConfig::new(shape.dim).init(device),
            head: LinearConfig::new(shape.dim, shape.vocabulary)
                .with_bias(false)
                .with_initializer(small)
                .init(device),
        }
    }

    fn loss(&self, batch: HostBatch, run: &Burn, _seed: u64, device: &Device) -> Tensor<1> {
        let [size, context] = [batch.shape[0], batch.shape[1]];
        let past = generate_autoregressive_mask(size, context, device);
        let ids = Tensor::<2, Int>::from_data(TensorData::new(batch.tokens, batch.shape), device);
        let mut hidden = self.tokens.forward(ids) + self.positions.val();
        for block in &self.blocks {
            let past = past.clone();
            hidden = if self.recomputes_blocks {
                checkpoint(block, (hidden, past), |block, (hidden, past)| {
                    block.forward(hidden, past)
                })
            } else {
                block.forward(hidden, past)
            };
        }
        let hidden = self.norm.forward(hidden);
        cross_entropy(
            &self.head,
            hidden,
            labels(batch.labels, device),
            run.loss_chunk,
        )
    }
}

/// A block with the norms before attention and MLP ("pre-norm").
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    widen: Linear,
    gelu: Gelu,
    narrow: Linear,
}

impl Block {
    fn new(shape: &LanguageConfig, device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(shape.dim).init(device),
            attention: MultiHeadAttentionConfig::new(shape.dim, shape.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: LayerNormConfig::new(shape.dim).init(device),
            widen: LinearConfig::new(shape.dim, shape.hidden).init(device),
            gelu: Gelu::new(),
            narrow: LinearConfig::new(shape.hidden, shape.dim).init(device),
        }
    }

    fn forward(&self, hidden: Tensor<3>, past: Tensor<3, Bool>) -> Tensor<3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(hidden.clone()));
        let hidden = hidden + self.attention.forward(input.mask_attn(past)).context;
        let wide = self.widen.forward(self.mlp_norm.forward(hidden.clone()));
        hidden + self.narrow.forward(self.gelu.forward(wide))
    }
}

/// Burn's own transformer encoder, between an embedding and a head that scores tokens.
#[derive(Module, Debug)]
pub(in crate::burn_0_22) struct Encoder {
    tokens: Embedding,
    positions: Embedding,
    encoder: TransformerEncoder,
    recomputes_blocks: bool,
    head: Linear,
}

impl Trainee for Encoder {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, recomputed: Recomputed, device: &Device) -> Self {
        let LanguageConfig {
            vocabulary,
            context,
            dim,
            depth,
            heads,
            hidden,
            dropout,
        } = *shape;
        Self {
            tokens: EmbeddingConfig::new(vocabulary, dim).init(device),
            positions: EmbeddingConfig::new(context, dim).init(device),
            encoder: TransformerEncoderConfig::new(dim, hidden, heads, depth)
                .with_dropout(dropout)
                .init(device),
            recomputes_blocks: recomputed != Recomputed::Nothing,
            head: LinearConfig::new(dim, vocabulary).init(device),
        }
    }

    /// As `TransformerEncoder::forward`, which has no place for a scope. Each layer has a seed of
    /// its own, as a scope has a stream of its own: the masks do not depend on what is recomputed.
    fn loss(&self, batch: HostBatch, run: &Burn, seed: u64, device: &Device) -> Tensor<1> {
        let places = Tensor::arange(0..batch.shape[1] as i64, device).unsqueeze();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(batch.tokens, batch.shape), device);
        let mut hidden = self.tokens.forward(ids) + self.positions.forward(places);
        for (number, layer) in self.encoder.layers.iter().enumerate() {
            let seed = SeededRng::new(&[seed, number as u64]).next_u64();
            let forward = move |layer: &TransformerEncoderLayer, hidden: Tensor<3>| {
                hidden.device().seed(seed);
                layer.forward(hidden, None, None)
            };
            hidden = if self.recomputes_blocks {
                checkpoint(layer, hidden, forward)
            } else {
                forward(layer, hidden)
            };
        }
        cross_entropy(
            &self.head,
            hidden,
            labels(batch.labels, device),
            run.loss_chunk,
        )
    }
}

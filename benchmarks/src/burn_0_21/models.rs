//! What is trained: the vision transformer of `vit-0-21`, and two language models.

use benchmarks::shape::{HostBatch, LanguageConfig};
use benchmarks::subject::LossChunk;
use burn::module::{AutodiffModule, Initializer, Module, Param};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_gradient_release::checkpoint;
use vit_0_21::model::Vit;
use vit_common::config::VitConfig;

/// A model that can be built on any backend.
pub(super) trait Trainee<B: AutodiffBackend>: AutodiffModule<B> + 'static {
    /// Its shape.
    type Shape;

    /// Builds the model with random weights. With `recomputes_blocks`, the backward pass computes
    /// its blocks again, on a backend with gradient release.
    fn build(shape: &Self::Shape, recomputes_blocks: bool, device: &Device<B>) -> Self;

    /// The loss of a batch, with the language models' by chunks if `chunk` says so.
    fn loss(&self, batch: HostBatch, chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1>;
}

impl<B: AutodiffBackend> Trainee<B> for Vit<B> {
    type Shape = VitConfig;

    fn build(shape: &VitConfig, recomputes_blocks: bool, device: &Device<B>) -> Self {
        Self::new(shape, device).recomputing_blocks(recomputes_blocks)
    }

    /// One token of an image is scored: `plan` never asks for chunks.
    fn loss(&self, batch: HostBatch, _chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1> {
        let images = Tensor::from_data(TensorData::new(batch.pixels, batch.shape), device);
        let labels = Tensor::from_data(batch.labels.as_slice(), device);
        let loss = CrossEntropyLossConfig::new().init(device);
        loss.forward(self.forward(images), labels)
    }
}

/// A decoder in the style of GPT-2 (Radford et al., 2019), with an output matrix that is not tied
/// to the embedding.
#[derive(Module, Debug)]
pub(super) struct Gpt<B: Backend> {
    tokens: Embedding<B>,
    positions: Param<Tensor<B, 3>>,
    blocks: Vec<Block<B>>,
    recomputes_blocks: bool,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Trainee<B> for Gpt<B> {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, recomputes_blocks: bool, device: &Device<B>) -> Self {
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
            recomputes_blocks,
            norm: LayerNormConfig::new(shape.dim).init(device),
            head: LinearConfig::new(shape.dim, shape.vocabulary)
                .with_bias(false)
                .with_initializer(small)
                .init(device),
        }
    }

    fn loss(&self, batch: HostBatch, chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1> {
        let (ids, labels) = tokens_and_labels(batch, device);
        let [size, context] = ids.dims();
        let past = generate_autoregressive_mask(size, context, device);
        let mut hidden = self.tokens.forward(ids) + self.positions.val();
        for block in &self.blocks {
            let past = past.clone();
            hidden = if self.recomputes_blocks {
                checkpoint(|| block.forward(hidden, past))
            } else {
                block.forward(hidden, past)
            };
        }
        cross_entropy(&self.head, self.norm.forward(hidden), labels, chunk)
    }
}

/// A block with the norms before attention and MLP ("pre-norm").
#[derive(Module, Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    mlp_norm: LayerNorm<B>,
    widen: Linear<B>,
    gelu: Gelu,
    narrow: Linear<B>,
}

impl<B: Backend> Block<B> {
    fn new(shape: &LanguageConfig, device: &Device<B>) -> Self {
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

    fn forward(&self, hidden: Tensor<B, 3>, past: Tensor<B, 3, Bool>) -> Tensor<B, 3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(hidden.clone()));
        let hidden = hidden + self.attention.forward(input.mask_attn(past)).context;
        let wide = self.widen.forward(self.mlp_norm.forward(hidden.clone()));
        hidden + self.narrow.forward(self.gelu.forward(wide))
    }
}

/// The model of <https://github.com/tracel-ai/burn/issues/5212>: Burn's own transformer encoder
/// between an embedding and a head that scores tokens.
#[derive(Module, Debug)]
pub(super) struct Encoder<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    encoder: TransformerEncoder<B>,
    recomputes_blocks: bool,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Trainee<B> for Encoder<B> {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, recomputes_blocks: bool, device: &Device<B>) -> Self {
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
            recomputes_blocks,
            head: LinearConfig::new(dim, vocabulary).init(device),
        }
    }

    fn loss(&self, batch: HostBatch, chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1> {
        let (ids, labels) = tokens_and_labels(batch, device);
        let [_, context] = ids.dims();
        let places = Tensor::arange(0..context as i64, device).unsqueeze();
        let embedded = self.tokens.forward(ids) + self.positions.forward(places);
        let hidden = match self.recomputes_blocks {
            // As `TransformerEncoder::forward`, which has no place for a scope.
            true => self.encoder.layers.iter().fold(embedded, |hidden, layer| {
                checkpoint(|| layer.forward(hidden, None, None))
            }),
            false => self.encoder.forward(TransformerEncoderInput::new(embedded)),
        };
        cross_entropy(&self.head, hidden, labels, chunk)
    }
}

/// `[batch, time]` tokens and `[batch * time]` labels.
fn tokens_and_labels<B: Backend>(
    batch: HostBatch,
    device: &Device<B>,
) -> (Tensor<B, 2, Int>, Tensor<B, 1, Int>) {
    let ids = TensorData::new(batch.tokens, batch.shape);
    let labels = [batch.labels.len()];
    let labels = TensorData::new(batch.labels, labels);
    (
        Tensor::from_data(ids, device),
        Tensor::from_data(labels, device),
    )
}

/// The mean cross entropy of what `head` scores.
///
/// With chunks, each is a scope of `checkpoint` around head and loss: on a backend with gradient
/// release, only the scores of one chunk exist at once.
///
/// # Shapes
///
/// - hidden: `[batch, time, dim]`
/// - labels: `[batch * time]`
/// - output: `[1]`
fn cross_entropy<B: Backend>(
    head: &Linear<B>,
    hidden: Tensor<B, 3>,
    labels: Tensor<B, 1, Int>,
    chunk: LossChunk,
) -> Tensor<B, 1> {
    let loss = CrossEntropyLossConfig::new().init(&hidden.device());
    let LossChunk(Some(chunk)) = chunk else {
        return loss.forward(head.forward(hidden).flatten(0, 1), labels);
    };
    let hidden: Tensor<B, 2> = hidden.flatten(0, 1);
    let [tokens, _] = hidden.dims();
    let chunks = hidden.split(chunk.get(), 0).into_iter();
    let sums = chunks
        .zip(labels.split(chunk.get(), 0))
        .map(|(hidden, labels)| {
            let [count] = labels.dims();
            checkpoint(|| loss.forward(head.forward(hidden), labels) * count as f64)
        });
    let sum = sums.reduce(|sum, next| sum + next);
    sum.expect("a batch has tokens") / tokens as f64
}

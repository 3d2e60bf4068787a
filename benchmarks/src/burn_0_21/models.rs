//! What is trained: the vision transformer of `vit-0-21`, and a language model.

use benchmarks::shape::{HostBatch, LanguageConfig};
use benchmarks::subject::LossChunk;
use burn::module::{AutodiffModule, Initializer, Module};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_gradient_release::checkpoint;
use vit_0_21::data::Batch;
use vit_0_21::model::Vit;
use vit_inputs::VitConfig;

/// A model that can be built on any backend.
pub(super) trait Trainee<B: AutodiffBackend>: AutodiffModule<B> + 'static {
    /// Its shape.
    type Shape;

    /// Builds the model with random weights. With `recomputes_blocks`, the backward pass computes
    /// its blocks again, on a backend with gradient release.
    fn build(shape: &Self::Shape, recomputes_blocks: bool, device: &Device<B>) -> Self;

    /// The loss of a batch, with a language model's by chunks if `chunk` says so.
    fn loss(&self, batch: HostBatch, chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1>;
}

impl<B: AutodiffBackend> Trainee<B> for Vit<B> {
    type Shape = VitConfig;

    fn build(shape: &VitConfig, recomputes_blocks: bool, device: &Device<B>) -> Self {
        Self::new(shape, device).recomputing_blocks(recomputes_blocks)
    }

    /// One token of an image is scored: `plan` never asks for chunks.
    fn loss(&self, batch: HostBatch, _chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1> {
        let batch = Batch::of(batch.pixels, batch.shape, batch.labels, device);
        self.forward_classification(batch).loss
    }
}

/// A decoder in the style of GPT-2 (Radford et al., 2019), or the encoder of
/// <https://github.com/tracel-ai/burn/issues/5212>: Burn's own transformer encoder between embeddings
/// and a head that scores tokens. In a decoder a token sees those before it, norms come before
/// attention and MLP ("pre-norm") and once more at the end, and the head has no bias.
#[derive(Module, Debug)]
pub(super) struct Language<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    encoder: TransformerEncoder<B>,
    recomputes_blocks: bool,
    /// Of a decoder.
    norm: Option<LayerNorm<B>>,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Trainee<B> for Language<B> {
    type Shape = LanguageConfig;

    fn build(shape: &LanguageConfig, recomputes_blocks: bool, device: &Device<B>) -> Self {
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
            recomputes_blocks,
            norm: is_decoder.then(|| LayerNormConfig::new(dim).init(device)),
            head: head.init(device),
        }
    }

    /// As `TransformerEncoder::forward`, which has no place for a scope.
    fn loss(&self, batch: HostBatch, chunk: LossChunk, device: &Device<B>) -> Tensor<B, 1> {
        let ids =
            Tensor::<B, 2, Int>::from_data(TensorData::new(batch.tokens, batch.shape), device);
        let labels = Tensor::from_data(batch.labels.as_slice(), device);
        let [size, context] = ids.dims();
        let places = Tensor::arange(0..context as i64, device).unsqueeze();
        let mut hidden = self.tokens.forward(ids) + self.positions.forward(places);
        let mask = || generate_autoregressive_mask(size, context, device);
        let past = self.norm.is_some().then(mask);
        for layer in &self.encoder.layers {
            let past = past.clone();
            hidden = if self.recomputes_blocks {
                checkpoint(|| layer.forward(hidden, None, past))
            } else {
                layer.forward(hidden, None, past)
            };
        }
        if let Some(norm) = &self.norm {
            hidden = norm.forward(hidden);
        }
        cross_entropy(&self.head, hidden, labels, chunk)
    }
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

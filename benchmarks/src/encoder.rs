//! The model of <https://github.com/tracel-ai/burn/issues/5212>: Burn's own transformer encoder
//! between an embedding and a head that scores tokens.

use crate::arithmetic::LossChunk;
use crate::loss::cross_entropy;
use burn::config::Config;
use burn::module::Module;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use burn_gradient_release::checkpoint;

/// The shape of an encoder.
#[derive(Config, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Width of a token.
    pub dim: usize,
    /// Number of layers.
    pub depth: usize,
    /// Attention heads in a layer; divides `dim`.
    pub heads: usize,
    /// Width of the hidden sub-layer in a layer.
    pub hidden: usize,
    /// Probability of dropout while training; the default is that of Burn's encoder.
    #[config(default = 0.1)]
    pub dropout: f64,
}

impl EncoderConfig {
    /// Elements of the largest parameter, and so of the largest single gradient.
    pub fn largest_param(&self) -> usize {
        self.dim * self.vocabulary.max(self.hidden).max(self.context)
    }

    /// Builds the model with random weights.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Encoder<B> {
        Encoder {
            tokens: EmbeddingConfig::new(self.vocabulary, self.dim).init(device),
            positions: EmbeddingConfig::new(self.context, self.dim).init(device),
            encoder: TransformerEncoderConfig::new(self.dim, self.hidden, self.heads, self.depth)
                .with_dropout(self.dropout)
                .init(device),
            recomputes_layers: false,
            head: LinearConfig::new(self.dim, self.vocabulary).init(device),
        }
    }
}

/// An encoder that scores the tokens at every position.
#[derive(Module, Debug)]
pub struct Encoder<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    encoder: TransformerEncoder<B>,
    recomputes_layers: bool,
    head: Linear<B>,
}

impl<B: Backend> Encoder<B> {
    /// Whether the backward pass recomputes the layers from their inputs, on a backend with
    /// gradient release; otherwise their activations are kept.
    pub fn recomputing_layers(mut self, recomputes: bool) -> Self {
        self.recomputes_layers = recomputes;
        self
    }

    /// Scores every token of the vocabulary for each position.
    ///
    /// # Shapes
    ///
    /// - ids: `[batch, context]`
    /// - output: `[batch * context, vocabulary]`
    pub fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        self.head.forward(self.hidden(ids)).flatten(0, 1)
    }

    /// The mean loss of the scores, see [`cross_entropy`].
    ///
    /// # Shapes
    ///
    /// - ids: `[batch, context]`
    /// - labels: `[batch * context]`
    pub fn loss(
        &self,
        ids: Tensor<B, 2, Int>,
        labels: Tensor<B, 1, Int>,
        chunk: LossChunk,
    ) -> Tensor<B, 1> {
        cross_entropy(&self.head, self.hidden(ids), labels, chunk)
    }

    /// What the head scores: `[batch, context, dim]`.
    fn hidden(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [_, context] = ids.dims();
        let places = Tensor::arange(0..context as i64, &ids.device()).unsqueeze();
        let embedded = self.tokens.forward(ids) + self.positions.forward(places);
        if self.recomputes_layers {
            // As `TransformerEncoder::forward`, which has no place for a scope.
            let layers = self.encoder.layers.iter();
            return layers.fold(embedded, |hidden, layer| {
                checkpoint(|| layer.forward(hidden, None, None))
            });
        }
        self.encoder.forward(TransformerEncoderInput::new(embedded))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::backend::Flex;

    fn config() -> EncoderConfig {
        EncoderConfig::new(11, 4, 8, 2, 2, 32)
    }

    #[test]
    fn every_position_is_scored_and_sees_all_others() {
        let device = Default::default();
        let model = config().init::<Flex>(&device);
        let scores = |ids: [i32; 4]| {
            let ids = Tensor::<Flex, 1, Int>::from_ints(ids, &device).reshape([1, 4]);
            let scores = model.forward(ids);
            assert_eq!(scores.dims(), [4, 11]);
            scores.into_data().to_vec::<f32>().unwrap()
        };
        let (one, other) = (scores([1, 2, 3, 4]), scores([1, 2, 3, 9]));
        assert_ne!(one[..11], other[..11]);
        // Equal tokens differ by their positions.
        let equal = scores([5; 4]);
        assert_ne!(equal[..11], equal[11..22]);
    }

    #[test]
    fn the_largest_parameter_is_the_largest() {
        let model = config().init::<Flex>(&Default::default());
        assert_eq!(config().largest_param(), 8 * 32);
        // Four square matrices, the two of the hidden sub-layer and two norms in each of two
        // layers.
        let layer = 4 * (64 + 8) + (256 + 32) + (256 + 8) + 2 * 16;
        let head = 8 * 11 + 11;
        assert_eq!(model.num_params(), 11 * 8 + 4 * 8 + 2 * layer + head);
    }
}

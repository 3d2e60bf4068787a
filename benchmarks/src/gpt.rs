//! A decoder in the style of GPT-2 (Radford et al., 2019), with an output matrix that is not tied
//! to the embedding.

use crate::arithmetic::LossChunk;
use crate::loss::cross_entropy;
use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Int, Tensor};
use burn_gradient_release::checkpoint;

/// The shape of a decoder.
#[derive(Config, Debug, PartialEq)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Width of a token.
    pub dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads in a block; divides `dim`.
    pub heads: usize,
    /// Width of the hidden layer in a block.
    pub hidden: usize,
}

impl GptConfig {
    /// Elements of the largest parameter, and so of the largest single gradient.
    pub fn largest_param(&self) -> usize {
        self.dim * self.vocabulary.max(self.hidden).max(self.context)
    }

    /// Builds the model with random weights.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Gpt<B> {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Gpt {
            tokens: EmbeddingConfig::new(self.vocabulary, self.dim)
                .with_initializer(small.clone())
                .init(device),
            positions: small.init([1, self.context, self.dim], device),
            blocks: (0..self.depth).map(|_| self.init_block(device)).collect(),
            recomputes_blocks: false,
            norm: LayerNormConfig::new(self.dim).init(device),
            head: LinearConfig::new(self.dim, self.vocabulary)
                .with_bias(false)
                .with_initializer(small)
                .init(device),
        }
    }

    fn init_block<B: Backend>(&self, device: &B::Device) -> Block<B> {
        Block {
            attention_norm: LayerNormConfig::new(self.dim).init(device),
            attention: MultiHeadAttentionConfig::new(self.dim, self.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: LayerNormConfig::new(self.dim).init(device),
            widen: LinearConfig::new(self.dim, self.hidden).init(device),
            gelu: Gelu::new(),
            narrow: LinearConfig::new(self.hidden, self.dim).init(device),
        }
    }
}

/// A decoder that scores the next token at every position.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    tokens: Embedding<B>,
    positions: Param<Tensor<B, 3>>,
    blocks: Vec<Block<B>>,
    recomputes_blocks: bool,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> Gpt<B> {
    /// Whether the backward pass recomputes the blocks from their inputs, on a backend with
    /// gradient release; otherwise their activations are kept.
    pub fn recomputing_blocks(mut self, recomputes: bool) -> Self {
        self.recomputes_blocks = recomputes;
        self
    }

    /// Scores every token of the vocabulary for the position after each given one.
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
        let [batch, context] = ids.dims();
        let past = generate_autoregressive_mask(batch, context, &ids.device());
        let mut hidden = self.tokens.forward(ids) + self.positions.val();
        for block in &self.blocks {
            let past = past.clone();
            hidden = if self.recomputes_blocks {
                checkpoint(|| block.forward(hidden, past))
            } else {
                block.forward(hidden, past)
            };
        }
        self.norm.forward(hidden)
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
    fn forward(&self, hidden: Tensor<B, 3>, past: Tensor<B, 3, Bool>) -> Tensor<B, 3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(hidden.clone()));
        let hidden = hidden + self.attention.forward(input.mask_attn(past)).context;
        let wide = self.widen.forward(self.mlp_norm.forward(hidden.clone()));
        hidden + self.narrow.forward(self.gelu.forward(wide))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::backend::Flex;
    use burn::tensor::Int;

    fn config() -> GptConfig {
        GptConfig::new(11, 4, 8, 2, 2, 32)
    }

    #[test]
    fn scores_depend_on_the_past_only() {
        let device = Default::default();
        let model = config().init::<Flex>(&device);
        let scores = |ids: [i32; 4]| {
            let ids = Tensor::<Flex, 1, Int>::from_ints(ids, &device).reshape([1, 4]);
            let scores = model.forward(ids);
            assert_eq!(scores.dims(), [4, 11]);
            scores.into_data().to_vec::<f32>().unwrap()
        };
        let (one, other) = (scores([1, 2, 3, 4]), scores([1, 2, 3, 9]));
        assert_eq!(one[..33], other[..33]);
        assert_ne!(one[33..], other[33..]);
    }

    #[test]
    fn the_largest_parameter_is_the_largest() {
        let model = config().init::<Flex>(&Default::default());
        assert_eq!(config().largest_param(), 8 * 32);
        let wide = GptConfig {
            vocabulary: 100,
            ..config()
        };
        assert_eq!(wide.largest_param(), 8 * 100);
        // Two norms, four square matrices and the two of the hidden layer in each of two blocks.
        let block = 2 * 16 + 4 * (64 + 8) + (256 + 32) + (256 + 8);
        assert_eq!(model.num_params(), 11 * 8 + 4 * 8 + 2 * block + 16 + 8 * 11);
    }
}

//! The model, made of the modules of `super::nn`.

use super::cross_entropy;
use super::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use super::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use crate::burn_0_22::scorer::Scorer;
use crate::gpt::GptConfig;
use crate::results::LossChunk;
// The derive macro names the crate `burn`, which is Burn 0.21 elsewhere in this package.
use burn_0_22 as burn;
use burn_0_22::module::{Initializer, Module, Param};
use burn_0_22::tensor::{Bool, Device, Int, Tensor};
use burn_lean::checkpoint;

/// A decoder that scores the next token at every position.
#[derive(Module, Debug)]
pub(in crate::burn_0_22) struct Gpt {
    tokens: Embedding,
    positions: Param<Tensor<3>>,
    blocks: Vec<Block>,
    recomputes_blocks: bool,
    norm: LayerNorm,
    head: Linear,
}

impl Scorer<GptConfig> for Gpt {
    fn new(config: &GptConfig, recomputes_blocks: bool, device: &Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Self {
            tokens: EmbeddingConfig::new(config.vocabulary, config.dim)
                .with_initializer(small.clone())
                .init(device),
            positions: small.init([1, config.context, config.dim], device),
            blocks: (0..config.depth)
                .map(|_| Block::new(config, device))
                .collect(),
            recomputes_blocks,
            norm: LayerNormConfig::new(config.dim).init(device),
            head: LinearConfig::new(config.dim, config.vocabulary)
                .with_bias(false)
                .with_initializer(small)
                .init(device),
        }
    }

    /// There is no dropout, so nothing is drawn from a seed.
    fn loss(
        &self,
        ids: Tensor<2, Int>,
        labels: Tensor<1, Int>,
        chunk: LossChunk,
        _seed: u64,
    ) -> Tensor<1> {
        cross_entropy(&self.head, self.hidden(ids), labels, chunk)
    }
}

impl Gpt {
    /// What the head scores: `[batch, context, dim]`.
    fn hidden(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let [batch, context] = ids.dims();
        let past = generate_autoregressive_mask(batch, context, &ids.device());
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
        self.norm.forward(hidden)
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
    fn new(config: &GptConfig, device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(config.dim).init(device),
            attention: MultiHeadAttentionConfig::new(config.dim, config.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: LayerNormConfig::new(config.dim).init(device),
            widen: LinearConfig::new(config.dim, config.hidden).init(device),
            gelu: Gelu::new(),
            narrow: LinearConfig::new(config.hidden, config.dim).init(device),
        }
    }

    fn forward(&self, hidden: Tensor<3>, past: Tensor<3, Bool>) -> Tensor<3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(hidden.clone()));
        let hidden = hidden + self.attention.forward(input.mask_attn(past)).context;
        let wide = self.widen.forward(self.mlp_norm.forward(hidden.clone()));
        hidden + self.narrow.forward(self.gelu.forward(wide))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burn_0_22::scorer::testing::{self, CONTEXT, VOCABULARY};

    #[test]
    fn scores_depend_on_the_past_only() {
        let _alone = testing::alone();
        let device = Device::flex().autodiff();
        let config = GptConfig::new(VOCABULARY, CONTEXT, 8, 2, 2, 32);
        for recomputes in [false, true] {
            let model = Gpt::new(&config, recomputes, &device);
            let scores = |ids: [i32; CONTEXT]| {
                let ids = Tensor::<1, Int>::from_ints(ids, &device).unsqueeze();
                let scores = model.head.forward(model.hidden(ids));
                assert_eq!(scores.dims(), [1, CONTEXT, VOCABULARY]);
                scores.into_data().try_to_vec::<f32>().unwrap()
            };
            let (one, other) = (scores([1, 2, 3, 4]), scores([1, 2, 3, 9]));
            let last = (CONTEXT - 1) * VOCABULARY;
            assert_eq!(one[..last], other[..last]);
            assert_ne!(one[last..], other[last..]);
        }
    }
}

//! The model, made of the modules of `super::nn`.

use super::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use super::nn::conv::{Conv2d, Conv2dConfig};
use super::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use super::nn::{
    Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use crate::model::Model;
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use burn_lean::checkpoint;
use vit_inputs::{Checkpointing, SeededRng, VitConfig};

/// A vision transformer that classifies images.
#[derive(Module, Debug)]
pub struct Vit {
    patches: Conv2d,
    class_token: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    dropout: Dropout,
    blocks: Vec<Block>,
    #[module(skip)]
    checkpointing: Checkpointing,
    norm: LayerNorm,
    head: Linear,
}

impl Model for Vit {
    fn new(config: &VitConfig, device: &Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        // Patches have a standard deviation of about 1: positions at 0.02 would have no effect for
        // epochs.
        let visible = Initializer::Normal {
            mean: 0.0,
            std: 0.2,
        };
        let patch = [config.patch_size; 2];
        Self {
            patches: Conv2dConfig::new([config.channels, config.dim], patch)
                .with_stride(patch)
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            class_token: small.init([1, 1, config.dim], device),
            positions: visible.init([1, config.tokens(), config.dim], device),
            dropout: DropoutConfig::new(config.dropout).init(),
            blocks: (0..config.depth)
                .map(|_| Block::new(config, device))
                .collect(),
            checkpointing: Checkpointing::None,
            norm: norm(config, device),
            head: LinearConfig::new(config.dim, config.classes)
                .with_initializer(small)
                .init(device),
        }
    }

    fn recomputing(mut self, checkpointing: Checkpointing) -> Self {
        self.checkpointing = checkpointing;
        self
    }

    fn forward(&self, images: Tensor<4>, seed: Option<u64>) -> Tensor<2> {
        if let Some(seed) = seed {
            images.device().seed(seed);
        }
        let [batch, ..] = images.dims();
        // `[batch, dim, rows, columns]` to `[batch, patches, dim]`
        let patches: Tensor<3> = self.patches.forward(images).flatten(2, 3).swap_dims(1, 2);
        let [_, _, dim] = patches.dims();

        let class_token = self.class_token.val().expand([batch, 1, dim]);
        let tokens = Tensor::cat(vec![class_token, patches], 1);
        let mut tokens = self.dropout.forward(tokens + self.positions.val());
        let checkpointing = self.checkpointing;
        for (number, block) in self.blocks.iter().enumerate() {
            let seeds = seed.map(|seed| {
                let mut rng = SeededRng::new(&[seed, number as u64]);
                [rng.next_u64(), rng.next_u64()]
            });
            let forward = move |block: &Block, tokens: Tensor<3>| {
                block.forward(tokens, seeds, checkpointing == Checkpointing::Nested)
            };
            tokens = match checkpointing {
                Checkpointing::Blocks | Checkpointing::Nested => checkpoint(block, tokens, forward),
                _ => forward(block, tokens),
            };
        }

        // Only one token is read, so only one needs the norm.
        let read = self.norm.forward(tokens.narrow(1, 0, 1));
        self.head.forward(read.reshape([batch, dim]))
    }
}

/// An encoder block with the norms before the work ("pre-norm").
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    mlp: PositionWiseFeedForward,
    dropout: Dropout,
}

impl Block {
    fn new(config: &VitConfig, device: &Device) -> Self {
        Self {
            attention_norm: norm(config, device),
            // Burn's attention would drop scores before the softmax; the paper drops none there.
            attention: MultiHeadAttentionConfig::new(config.dim, config.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: norm(config, device),
            mlp: PositionWiseFeedForwardConfig::new(config.dim, config.hidden)
                .with_dropout(0.0)
                .init(device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    fn forward(
        &self,
        tokens: Tensor<3>,
        seeds: Option<[u64; 2]>,
        recomputes_parts: bool,
    ) -> Tensor<3> {
        let [attention_seed, mlp_seed] = seeds.map_or([None; 2], |seeds| seeds.map(Some));
        let attended = if recomputes_parts {
            checkpoint(self, tokens.clone(), Self::attended)
        } else {
            self.attended(tokens.clone())
        };
        let tokens = tokens + self.dropped(attended, attention_seed);

        let normed = if recomputes_parts {
            checkpoint(&self.mlp_norm, tokens.clone(), LayerNorm::forward)
        } else {
            self.mlp_norm.forward(tokens.clone())
        };
        tokens + self.dropped(self.mlp.forward(normed), mlp_seed)
    }

    fn dropped(&self, tokens: Tensor<3>, seed: Option<u64>) -> Tensor<3> {
        if let Some(seed) = seed {
            tokens.device().seed(seed);
        }
        self.dropout.forward(tokens)
    }

    fn attended(&self, tokens: Tensor<3>) -> Tensor<3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(tokens));
        self.attention.forward(input).context
    }
}

fn norm(config: &VitConfig, device: &Device) -> LayerNorm {
    LayerNormConfig::new(config.dim)
        .with_epsilon(1e-6)
        .init(device)
}

//! The vision transformer (Dosovitskiy et al., 2021, <https://arxiv.org/abs/2010.11929>).

use crate::data::Batch;
use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use burn_gradient_release::checkpoint;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What the classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pool {
    /// A learned token before the patches, as in the paper
    ClassToken,
    /// The mean of all patches
    Mean,
}

/// The shape of a vision transformer.
#[derive(Config, Debug, PartialEq)]
pub struct VitConfig {
    /// Width and height of an image.
    pub image_size: usize,
    /// Width and height of a patch; divides the image size.
    pub patch_size: usize,
    /// Colour channels of an image.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// Width of a token.
    pub dim: usize,
    /// Number of encoder blocks.
    pub depth: usize,
    /// Attention heads in a block; divides `dim`.
    pub heads: usize,
    /// Width of the hidden layer in a block.
    pub hidden: usize,
    /// Probability of dropping an element on a residual path while training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// What the classifier reads.
    #[config(default = "Pool::ClassToken")]
    pub pool: Pool,
}

impl VitConfig {
    /// Number of parameters of the model.
    pub fn num_params(&self) -> usize {
        let linear = |from: usize, to: usize| from * to + to;
        let norm = 2 * self.dim;
        let patch = linear(self.channels * self.patch_size.pow(2), self.dim);
        let class_token = self.class_tokens() * self.dim;
        let positions = self.tokens() * self.dim;
        let block = 2 * norm
            + 4 * linear(self.dim, self.dim)
            + linear(self.dim, self.hidden)
            + linear(self.hidden, self.dim);
        let head = linear(self.dim, self.classes);
        patch + class_token + positions + self.depth * block + norm + head
    }

    /// Elements of the largest parameter, and so of the largest single gradient.
    pub fn largest_param(&self) -> usize {
        [
            self.channels * self.patch_size.pow(2) * self.dim,
            self.tokens() * self.dim,
            self.dim * self.dim,
            self.dim * self.hidden,
            self.dim * self.classes,
        ]
        .into_iter()
        .max()
        .unwrap_or(0)
    }

    /// Builds the model with random weights.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Vit<B> {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        // Patches have a standard deviation of about 1: positions at 0.02 would have no effect for epochs.
        let visible = Initializer::Normal {
            mean: 0.0,
            std: 0.2,
        };
        let patch = [self.patch_size; 2];
        Vit {
            patches: Conv2dConfig::new([self.channels, self.dim], patch)
                .with_stride(patch)
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            class_token: match self.pool {
                Pool::ClassToken => Some(small.init([1, 1, self.dim], device)),
                Pool::Mean => None,
            },
            positions: visible.init([1, self.tokens(), self.dim], device),
            dropout: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.depth).map(|_| self.init_block(device)).collect(),
            recomputes_blocks: false,
            norm: self.init_norm(device),
            head: LinearConfig::new(self.dim, self.classes)
                .with_initializer(small)
                .init(device),
        }
    }

    fn init_block<B: Backend>(&self, device: &B::Device) -> Block<B> {
        Block {
            attention_norm: self.init_norm(device),
            // Burn's attention would drop scores before the softmax; the paper drops none there.
            attention: MultiHeadAttentionConfig::new(self.dim, self.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: self.init_norm(device),
            widen: LinearConfig::new(self.dim, self.hidden).init(device),
            gelu: Gelu::new(),
            narrow: LinearConfig::new(self.hidden, self.dim).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }

    fn init_norm<B: Backend>(&self, device: &B::Device) -> LayerNorm<B> {
        LayerNormConfig::new(self.dim)
            .with_epsilon(1e-6)
            .init(device)
    }

    fn class_tokens(&self) -> usize {
        usize::from(self.pool == Pool::ClassToken)
    }

    fn tokens(&self) -> usize {
        (self.image_size / self.patch_size).pow(2) + self.class_tokens()
    }
}

/// A vision transformer that classifies images.
#[derive(Module, Debug)]
pub struct Vit<B: Backend> {
    patches: Conv2d<B>,
    class_token: Option<Param<Tensor<B, 3>>>,
    positions: Param<Tensor<B, 3>>,
    dropout: Dropout,
    blocks: Vec<Block<B>>,
    recomputes_blocks: bool,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> Vit<B> {
    /// Whether the backward pass recomputes the blocks from their inputs, on a backend with gradient
    /// release; otherwise their activations are kept.
    pub fn recomputing_blocks(mut self, recomputes: bool) -> Self {
        self.recomputes_blocks = recomputes;
        self
    }

    /// Scores each class for each image.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, size, size]`
    /// - output: `[batch, classes]`
    pub fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let [batch, ..] = images.dims();
        // `[batch, dim, rows, columns]` to `[batch, patches, dim]`
        let patches = self.patches.forward(images).flatten(2, 3).swap_dims(1, 2);
        let [_, _, dim] = patches.dims();

        let tokens = match &self.class_token {
            Some(token) => Tensor::cat(vec![token.val().expand([batch, 1, dim]), patches], 1),
            None => patches,
        };
        let mut tokens = self.dropout.forward(tokens + self.positions.val());
        for block in &self.blocks {
            tokens = if self.recomputes_blocks {
                checkpoint(|| block.forward(tokens))
            } else {
                block.forward(tokens)
            };
        }

        let read = match &self.class_token {
            // Only one token is read, so only one needs the norm.
            Some(_) => self.norm.forward(tokens.narrow(1, 0, 1)),
            None => self.norm.forward(tokens).mean_dim(1),
        };
        self.head.forward(read.reshape([batch, dim]))
    }

    /// Scores a batch and compares the scores with its labels.
    pub fn forward_classification(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, output, batch.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for Vit<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        // The dropout of a resumed run is that of the uninterrupted one.
        B::seed(&batch.images.device(), batch.seed);
        let item = burn_memory_timeline::forward(self, || self.forward_classification(batch));
        let grads = burn_memory_timeline::backward(|| item.loss.backward());
        TrainOutput::new(self, grads, item)
    }
}

impl<B: Backend> InferenceStep for Vit<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.forward_classification(batch)
    }
}

/// An encoder block with the norms before the work ("pre-norm").
#[derive(Module, Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    mlp_norm: LayerNorm<B>,
    widen: Linear<B>,
    gelu: Gelu,
    narrow: Linear<B>,
    dropout: Dropout,
}

impl<B: Backend> Block<B> {
    fn forward(&self, tokens: Tensor<B, 3>) -> Tensor<B, 3> {
        let input = MhaInput::self_attn(self.attention_norm.forward(tokens.clone()));
        let attended = self.attention.forward(input).context;
        let tokens = tokens + self.dropout.forward(attended);

        let hidden = self.widen.forward(self.mlp_norm.forward(tokens.clone()));
        let narrowed = self.narrow.forward(self.gelu.forward(hidden));
        tokens + self.dropout.forward(narrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;
    use burn::backend::Flex;

    #[test]
    fn presets_have_the_published_sizes() {
        assert_eq!(Preset::Base.imagenet().num_params(), 86_567_656);
        assert_eq!(Preset::Large.imagenet().num_params(), 304_326_632);
        assert_eq!(Preset::Small.imagenet().num_params(), 22_050_664);
    }

    #[test]
    fn arithmetic_agrees_with_the_built_model() {
        for pool in [Pool::ClassToken, Pool::Mean] {
            let config = Preset::Tiny.config(8, 1, 10).with_pool(pool);
            let model = config.init::<Flex>(&Default::default());
            assert_eq!(model.num_params(), config.num_params());
        }
    }

    #[test]
    fn scores_every_class_of_every_image() {
        for pool in [Pool::ClassToken, Pool::Mean] {
            let config = Preset::Tiny.config(8, 3, 5).with_pool(pool);
            let device = Default::default();
            let model = config.init::<Flex>(&device);
            let scores = model.forward(Tensor::ones([2, 3, 8, 8], &device));
            assert_eq!(scores.dims(), [2, 5]);
        }
    }
}

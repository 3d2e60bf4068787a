//! The shape of a vision transformer, and its arithmetic.

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

/// The parts of the model that the backward pass recomputes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recomputed {
    /// None.
    #[default]
    Nothing,
    /// Each block, from its input.
    Blocks,
    /// Each block from its input, and in it the attention and the norm of the perceptron once more,
    /// so that their activations do not exist beside those of the perceptron.
    Nested,
}

/// The shape of a vision transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub dropout: f64,
    /// What the classifier reads.
    pub pool: Pool,
}

impl VitConfig {
    /// The same shape with another place to read the classes from.
    pub fn with_pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

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

    /// Bytes of all weights and of the largest gradient. A training takes more.
    pub fn bytes_of_weights(&self) -> u64 {
        bytes(&[self.num_params() + self.largest_param()])
    }

    /// Bytes of the tokens of a batch.
    pub fn bytes_of_tokens(&self, batch: usize) -> u64 {
        bytes(&[batch, self.tokens(), self.dim])
    }

    /// Bytes of the scores of attention for a batch, in one block.
    pub fn bytes_of_scores(&self, batch: usize) -> u64 {
        bytes(&[batch, self.heads, self.tokens(), self.tokens()])
    }

    fn class_tokens(&self) -> usize {
        usize::from(self.pool == Pool::ClassToken)
    }

    /// Number of tokens of an image.
    pub fn tokens(&self) -> usize {
        (self.image_size / self.patch_size).pow(2) + self.class_tokens()
    }
}

/// Of a tensor of this shape, with numbers of 32 bits; the largest number if it is larger.
fn bytes(shape: &[usize]) -> u64 {
    let sizes = shape.iter().map(|size| *size as u64);
    sizes.fold(4, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use crate::config::Preset;

    #[test]
    fn presets_have_the_published_sizes() {
        assert_eq!(Preset::Base.imagenet().num_params(), 86_567_656);
        assert_eq!(Preset::Large.imagenet().num_params(), 304_326_632);
        assert_eq!(Preset::Small.imagenet().num_params(), 22_050_664);
    }
}

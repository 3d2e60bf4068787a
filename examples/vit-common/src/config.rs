//! The shape of a vision transformer, its presets, and the choices of a training run.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Model shapes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Patches of 2, width 64, 4 blocks, 4 heads: for the bundled digits.
    Tiny,
    /// ViT-S/16: width 384, 12 blocks, 6 heads; 22 M parameters at 224x224 with 1000 classes.
    Small,
    /// ViT-B/16: width 768, 12 blocks, 12 heads; 86 M parameters at 224x224 with 1000 classes.
    Base,
    /// ViT-L/16: width 1024, 24 blocks, 16 heads; 304 M parameters at 224x224 with 1000 classes.
    Large,
}

impl Preset {
    /// The preset's width, depth, heads and patches over images of this shape.
    pub fn config(self, image_size: usize, channels: usize, classes: usize) -> VitConfig {
        let (dim, depth, heads) = match self {
            Self::Tiny => (64, 4, 4),
            Self::Small => (384, 12, 6),
            Self::Base => (768, 12, 12),
            Self::Large => (1024, 24, 16),
        };
        VitConfig {
            image_size,
            patch_size: self.patch_size(),
            channels,
            classes,
            dim,
            depth,
            heads,
            hidden: 4 * dim,
            dropout: 0.0,
        }
    }

    /// The shape whose size is published: colour images of 224x224, 1000 classes.
    pub fn imagenet(self) -> VitConfig {
        self.config(224, 3, 1000)
    }

    /// Width and height of a patch.
    pub fn patch_size(self) -> usize {
        match self {
            Self::Tiny => 2,
            Self::Small | Self::Base | Self::Large => 16,
        }
    }
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
}

impl VitConfig {
    /// Number of tokens of an image: its patches, and the one that the classifier reads.
    pub fn tokens(&self) -> usize {
        (self.image_size / self.patch_size).pow(2) + 1
    }

    /// Number of parameters of the model.
    pub fn num_params(&self) -> usize {
        let linear = |from: usize, to: usize| from * to + to;
        let norm = 2 * self.dim;
        let patch = linear(self.channels * self.patch_size.pow(2), self.dim);
        let class_token = self.dim;
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
}

/// How the optimizer gets its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plain Burn: all gradients first, then the step
    Plain,
    /// Gradient release: every parameter steps inside the backward pass
    Release,
}

/// What the forward pass keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Every activation
    None,
    /// Recomputes what is cheap to recompute (Burn's balanced checkpointing)
    Balanced,
    /// The input of each transformer block; recomputes the block (with gradient release, on Burn 0.21)
    Blocks,
    /// As blocks, and recomputes half of each block once more: slower, and smaller (Burn 0.22, vision
    /// transformer)
    Nested,
    /// Little, at places that gradient release finds by itself; recomputes the rest (Burn 0.21)
    Automatic,
}

/// What a model is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operations {
    /// Burn's modules
    Default,
    /// Those of `burn_lean::operations`, which save fewer tensors for the backward pass (Burn 0.22)
    Lean,
}

/// Optimizers of Burn, of burn-gradient-release-optim and of burn-lean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam (not in vit-0-21)
    Adam,
    /// Burn's Adam in one pass over memory; the weights are the same (not in vit-0-21)
    AdamOnePass,
    /// Adam with moments in 8 bits (not in vit-0-21)
    #[serde(rename = "adam-8bit")]
    #[value(name = "adam-8bit")]
    Adam8bit,
    /// AdamW: Adam with decoupled weight decay
    // The alias is that of earlier runs of `vit-0-21`.
    #[serde(rename = "adamw", alias = "adam-w")]
    #[value(name = "adamw")]
    AdamW,
    /// Burn's AdamW in one pass over memory; the weights are the same
    #[serde(rename = "adamw-one-pass")]
    #[value(name = "adamw-one-pass")]
    AdamWOnePass,
    /// AdamW with moments in 8 bits
    #[serde(rename = "adamw-8bit")]
    #[value(name = "adamw-8bit")]
    AdamW8bit,
    /// AdamW with weights in bf16, a correction of 8 bits and moments in 8 bits (Burn 0.22, lean
    /// operations)
    #[serde(rename = "adamw-five-bytes")]
    #[value(name = "adamw-five-bytes")]
    AdamWFiveBytes,
    /// Adafactor: a second moment of rows and columns
    Adafactor,
    /// LAMB: Adam with steps in proportion to the weights, for large batches (Burn 0.22)
    Lamb,
    /// Lion: one momentum, steps by its sign (not in vit-0-21)
    Lion,
    /// Stochastic gradient descent with momentum (not in the benchmarks of Burn 0.21)
    Sgd,
}

impl OptimizerKind {
    /// Whether it is one with decoupled weight decay.
    pub fn decays_weights(self) -> bool {
        use OptimizerKind::{AdamW, AdamW8bit, AdamWFiveBytes, AdamWOnePass};
        matches!(self, AdamW | AdamWOnePass | AdamW8bit | AdamWFiveBytes)
    }

    /// Whether its model is in bf16.
    pub fn is_in_bf16(self) -> bool {
        self == Self::AdamWFiveBytes
    }
}

/// The weight decay of an optimizer that decays weights and was not told otherwise.
pub const WEIGHT_DECAY: f64 = 0.05;

/// Fraction of the iterations in which the learning rate rises to its maximum.
pub const WARM_UP: f64 = 0.1;

/// Writes the name that the command line takes.
#[macro_export]
macro_rules! display_as_value {
    ($($name:ty),*) => {$(
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match ::clap::ValueEnum::to_possible_value(self) {
                    Some(value) => f.write_str(value.get_name()),
                    None => write!(f, "{self:?}"),
                }
            }
        }
    )*};
}

display_as_value!(Preset, Mode, Checkpointing, Operations, OptimizerKind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_sizes() {
        assert_eq!(Preset::Base.imagenet().num_params(), 86_567_656);
        assert_eq!(Preset::Large.imagenet().num_params(), 304_326_632);
        assert_eq!(Preset::Small.imagenet().num_params(), 22_050_664);
    }
}

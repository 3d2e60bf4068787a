//! The shape of a vision transformer, its presets, and the choices of a training run.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Model shapes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Patches of 2, width 64, 4 blocks, 4 heads: for the bundled digits.
    Tiny,
    /// Patches of 16, width 384, 4 blocks, 6 heads: for a GPU's driver in software.
    Mini,
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
            Self::Mini => (384, 4, 6),
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

    /// Width and height of a patch.
    pub fn patch_size(self) -> usize {
        match self {
            Self::Tiny => 2,
            Self::Mini | Self::Small | Self::Base | Self::Large => 16,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Every activation
    #[default]
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

/// Optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum OptimizerKind {
    /// AdamW: Adam with decoupled weight decay
    #[serde(rename = "adamw")]
    #[value(name = "adamw")]
    AdamW,
    /// AdamW with moments in 8 bits
    #[serde(rename = "adamw-8bit")]
    #[value(name = "adamw-8bit")]
    AdamW8bit,
    /// AdamW with weights in bf16, a correction of 8 bits and moments in 8 bits (Burn 0.22, lean
    /// operations)
    #[serde(rename = "adamw-five-bytes")]
    #[value(name = "adamw-five-bytes")]
    AdamWFiveBytes,
}

/// Backends; a build has those whose cargo feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "lower")]
pub enum BackendKind {
    /// Burn's portable CPU backend
    Flex,
    /// GPU through WebGPU
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl BackendKind {
    /// Whether tensors live on the heap, where the counting allocator sees them.
    pub fn is_on_heap(self) -> bool {
        self == Self::Flex
    }

    /// The error of a build without the backend.
    pub fn not_compiled_in(self) -> anyhow::Error {
        anyhow::anyhow!("the backend {self} is not compiled in: build with `--features {self}`")
    }
}

/// The decoupled weight decay of the AdamWs.
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

display_as_value!(Preset, Mode, Checkpointing, Operations);
display_as_value!(OptimizerKind, BackendKind);

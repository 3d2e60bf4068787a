//! The options of a program, and the shapes of its model. The settings of a run are saved in its folder.

use crate::images::Dataset;
use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use lean_replicas::Replicas;
use lean_run_folder::{FolderOptions, Pending, Start};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The options of both programs.
#[derive(Debug, Args)]
pub struct Options {
    /// The settings of the run.
    #[command(flatten)]
    pub settings: Settings,
    /// Its folder.
    #[command(flatten)]
    pub folder: FolderOptions,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a
    /// build with the feature mpi
    #[arg(long)]
    pub data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    pub shard_optimizer: bool,
    /// Record a memory timeline of the third and the fourth batch, for `burn-memory` and
    /// pytorch.org/memory_viz, or with the ending `.perfetto.json` for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub memory_timeline: Option<PathBuf>,
}

impl Options {
    /// Looks at the folder of the run, where nothing changes until the run begins.
    ///
    /// # Errors
    ///
    /// It is not free; or it has no run to resume, or one with other settings.
    pub fn open<'a>(
        &self,
        program: &str,
        parts: &'a [&'a str],
        given: &'a [String],
        replicas: Option<&Replicas>,
    ) -> Result<Pending<'a, Settings>> {
        let start = Start {
            folder: self.folder.folder(program),
            parts,
            resume: self.folder.resume,
            overwrite: self.folder.overwrite,
            given,
            may_change: &MAY_CHANGE,
            is_first: replicas.is_none_or(Replicas::is_first),
        };
        let mut settings = self.settings.clone();
        settings.program = program.into();
        let pending = start.open(settings)?;
        let of = &pending.settings.program;
        ensure!(
            of == program,
            "the run to resume is of `{of}`: use that program"
        );
        Ok(pending)
    }
}

/// Images, shape of the model, how it is trained, and how that is computed.
#[derive(Clone, Debug, Serialize, Deserialize, Args)]
pub struct Settings {
    /// The program.
    #[arg(skip)]
    pub program: String,
    /// Images: `digits` (bundled), or a folder with one folder of .png or .jpg images for each class
    #[arg(long, default_value = "digits")]
    pub data: String,
    /// SHA-256 of the images as the model sees them, with their labels.
    #[arg(skip)]
    pub data_digest: String,
    /// Shape of the model
    #[arg(long, value_enum, default_value = "tiny")]
    pub preset: Preset,
    /// Width and height of an image [default: those of the data, at most 224, rounded up to whole patches]
    #[arg(long, value_name = "PIXELS", value_parser = count())]
    pub image_size: Option<usize>,
    /// Passes over the training images
    #[arg(long, default_value = "20", value_parser = count())]
    pub epochs: usize,
    /// Images in a batch
    #[arg(long, default_value = "32", value_parser = count())]
    pub batch_size: usize,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine decay to zero
    #[arg(long, value_name = "RATE", default_value = "0.002", value_parser = rate)]
    pub lr: f64,
    /// Probability of dropout
    #[arg(long, value_name = "PROBABILITY", default_value = "0.1", value_parser = probability)]
    pub dropout: f64,
    /// Seed of the weights, of the order of the images and of dropout
    #[arg(long, default_value = "42")]
    pub seed: u64,
    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw")]
    pub optimizer: OptimizerKind,
    /// Plain Burn or gradient release; the weights are the same
    #[arg(long, value_enum, default_value = "release")]
    pub mode: Mode,
    /// What the forward pass keeps for the backward pass; the weights are the same
    #[arg(long, value_enum, default_value = "none")]
    pub checkpointing: Checkpointing,
    /// What the model is made of; the weights are the same but for rounding, and so are the
    /// checkpoints
    #[arg(long, value_enum, default_value = "default")]
    pub operations: Operations,
    /// Backend; a build has those whose cargo feature is on
    #[arg(long, value_enum, default_value = "flex")]
    pub backend: BackendKind,
}

/// The settings that a resumed run may have others of. What is in the images says their digest.
pub const MAY_CHANGE: [&str; 5] = ["data", "mode", "checkpointing", "operations", "backend"];

impl Settings {
    /// The images; or which option does not go with the others.
    ///
    /// # Errors
    ///
    /// The option; or the images cannot be read, or are not those that the run began with.
    pub fn load(&mut self, replicas: Option<&Replicas>) -> Result<Dataset> {
        ensure!(
            replicas.is_none() || self.mode == Mode::Release,
            "--data-parallel needs gradient release: use --mode release"
        );
        let data = Dataset::load(&self.data, self.image_size, self.preset.patch_size())?;
        let digest = data.digest();
        ensure!(
            self.data_digest.is_empty() || self.data_digest == digest,
            "the images of {} are not those that the run began with",
            self.data
        );
        self.data_digest = digest;
        let processes = replicas.map_or(1, Replicas::size);
        let last = (data.train.len() - 1) % self.batch_size + 1;
        ensure!(
            last >= processes,
            "the last batch of an epoch has {last} images, and each of {processes} processes needs one: choose another \
             --batch-size"
        );
        Ok(data)
    }

    /// The shape of the model for these images.
    pub fn model(&self, data: &Dataset) -> VitConfig {
        let config = self.preset.config(data.size, data.channels, data.classes);
        VitConfig {
            dropout: self.dropout,
            ..config
        }
    }

    /// The batches of an epoch.
    pub fn batches(&self, data: &Dataset) -> usize {
        data.train.len().div_ceil(self.batch_size)
    }
}

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

/// Bytes in MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=65_536)
}

/// A learning rate of the command line.
///
/// # Errors
///
/// What it must be.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
    rate.ok_or_else(|| "it must be above 0".into())
}

fn probability(text: &str) -> Result<f64, String> {
    let probability = text.parse().ok();
    let probability = probability.filter(|it: &f64| (0.0..1.0).contains(it));
    probability.ok_or_else(|| "it must be at least 0 and below 1".into())
}

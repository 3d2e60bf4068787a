//! The options of `vit train`. The settings of a run are saved in its folder.

use anyhow::{Result, ensure};
use burn_lean::Replicas;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, ValueEnum};
use images::Dataset;
use lean_run_folder::FolderOptions;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use vit::model::{Checkpointing, VitConfig};

#[derive(Debug, Parser)]
#[command(
    version,
    about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release"
)]
pub(crate) enum Program {
    /// Trains a vision transformer on Burn 0.22, plainly or with gradient release
    Train(Box<Options>),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten)]
    pub(crate) folder: FolderOptions,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a build with the
    /// feature mpi
    #[arg(long)]
    pub(crate) data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    pub(crate) shard_optimizer: bool,
    /// Stop after this many batches of the whole run, resumed or not: the current epoch is lost, and --resume continues
    /// after the last complete one
    #[arg(long, value_name = "BATCHES")]
    pub(crate) stop_after: Option<NonZeroUsize>,
    /// Record a memory timeline of the third and the fourth batch, for `burn-memory` and pytorch.org/memory_viz, or with
    /// the ending `.perfetto.json` for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_timeline: Option<PathBuf>,
}

/// Images, shape of the model, how it is trained, and how that is computed.
#[derive(Clone, Debug, Serialize, Deserialize, Args)]
pub(crate) struct Settings {
    /// Images: `digits` (bundled), or a folder with one folder of .png or .jpg images for each class
    #[arg(long, default_value = "digits")]
    pub(crate) data: String,
    /// SHA-256 of the images as the model sees them, with their labels.
    #[arg(skip)]
    pub(crate) data_digest: String,
    /// Shape of the model
    #[arg(long, value_enum, default_value = "tiny")]
    pub(crate) preset: Preset,
    /// Width and height of an image [default: those of the data, at most 224, rounded up to whole patches]
    #[arg(long, value_name = "PIXELS", value_parser = count())]
    pub(crate) image_size: Option<usize>,
    /// Passes over the training images
    #[arg(long, default_value = "20", value_parser = count())]
    pub(crate) epochs: usize,
    /// Images in a batch
    #[arg(long, default_value = "32", value_parser = count())]
    pub(crate) batch_size: usize,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine decay to zero
    #[arg(long, value_name = "RATE", default_value = "0.002", value_parser = rate)]
    pub(crate) lr: f64,
    /// Probability of dropout
    #[arg(long, value_name = "PROBABILITY", default_value = "0.1", value_parser = probability)]
    pub(crate) dropout: f64,
    /// Seed of the weights, of the order of the images and of dropout
    #[arg(long, default_value = "42")]
    pub(crate) seed: u64,
    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw")]
    pub(crate) optimizer: OptimizerKind,
    /// Plain Burn or gradient release; the weights are the same
    #[arg(long, value_enum, default_value = "release")]
    pub(crate) mode: Mode,
    /// What the forward pass keeps for the backward pass; the weights are the same [default with --mode plain: none]
    #[arg(
        long,
        value_enum,
        default_value = "blocks",
        default_value_if("mode", "plain", "none")
    )]
    pub(crate) checkpointing: Checkpointing,
    /// What the model is made of; the weights are the same but for rounding, and so are the checkpoints
    #[arg(long, value_enum, default_value = "default")]
    pub(crate) operations: Operations,
    /// Backend; a build has those whose cargo feature is on
    #[arg(long, value_enum, default_value = "flex")]
    pub(crate) backend: BackendKind,
}

/// The settings that a resumed run may have others of. What is in the images says their digest.
pub(crate) const MAY_CHANGE: [&str; 5] = ["data", "mode", "checkpointing", "operations", "backend"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Preset {
    /// Patches of 2, width 64, 4 blocks, 4 heads: for the bundled digits
    Tiny,
    /// ViT-S/16: width 384, 12 blocks, 6 heads; 22 M parameters at 224x224 with 1000 classes
    Small,
    /// ViT-B/16: width 768, 12 blocks, 12 heads; 86 M parameters at 224x224 with 1000 classes
    Base,
    /// ViT-L/16: width 1024, 24 blocks, 16 heads; 304 M parameters at 224x224 with 1000 classes
    Large,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Plain Burn: all gradients first, then the step
    Plain,
    /// Gradient release: every parameter steps inside the backward pass
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operations {
    /// Burn's modules
    Default,
    /// Those of `burn_lean::operations`, which save fewer tensors for the backward pass
    Lean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum OptimizerKind {
    /// AdamW: Adam with decoupled weight decay
    #[serde(rename = "adamw")]
    AdamW,
    /// AdamW with moments in 8 bits
    #[serde(rename = "adamw-8bit")]
    #[value(name = "adamw-8bit")]
    AdamW8bit,
    /// AdamW with weights in bf16, a correction of 8 bits and moments in 8 bits (with lean operations)
    #[serde(rename = "adamw-five-bytes")]
    #[value(name = "adamw-five-bytes")]
    AdamWFiveBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BackendKind {
    /// Burn's portable CPU backend
    Flex,
    /// GPU through WebGPU
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl BackendKind {
    /// Whether tensors are on the heap, where the allocator counts them.
    pub(crate) fn is_on_heap(self) -> bool {
        self == Self::Flex
    }
}

/// The name of a value on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Settings {
    /// The images, and the shape of a model for them; or which option does not go with the others.
    pub(crate) fn load(&mut self, replicas: Option<&Replicas>) -> Result<(Dataset, VitConfig)> {
        ensure!(
            replicas.is_none() || self.mode == Mode::Release,
            "--data-parallel needs gradient release: use --mode release"
        );
        ensure!(
            self.optimizer != OptimizerKind::AdamWFiveBytes || self.operations == Operations::Lean,
            "--optimizer adamw-five-bytes trains in bf16 with norms in f32, which need --operations lean"
        );
        let (patch_size, dim, depth, heads) = match self.preset {
            Preset::Tiny => (2, 64, 4, 4),
            Preset::Small => (16, 384, 12, 6),
            Preset::Base => (16, 768, 12, 12),
            Preset::Large => (16, 1024, 24, 16),
        };
        let data = Dataset::load(&self.data, self.image_size, patch_size)?;
        let digest = data.digest();
        ensure!(
            self.data_digest.is_empty() || self.data_digest == digest,
            "the images of {} are not those that the run began with",
            self.data
        );
        self.data_digest = digest;
        let (processes, last) = (replicas.map_or(1, Replicas::size), data.train.len() - 1);
        let last = last % self.batch_size + 1;
        ensure!(
            last >= processes,
            "the last batch of an epoch has {last} images, and each of {processes} processes needs one: choose another \
             --batch-size"
        );
        let config = VitConfig {
            image_size: data.size,
            patch_size,
            channels: data.channels,
            classes: data.classes,
            dim,
            depth,
            heads,
            hidden: 4 * dim,
            dropout: self.dropout,
        };
        Ok((data, config))
    }
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=65_536)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
    rate.ok_or_else(|| "it must be above 0".into())
}

fn probability(text: &str) -> Result<f64, String> {
    let probability = text.parse().ok();
    let probability = probability.filter(|it: &f64| (0.0..1.0).contains(it));
    probability.ok_or_else(|| "it must be at least 0 and below 1".into())
}

//! The options of a suite, as the command line has them.

use crate::results::Settings;
use crate::shape::Kind;
use crate::subject::{
    BurnVersion, Checkpointing, LinearGradient, LossChunk, Mode, Operations, OptimizerKind, Pools,
    TorchMode,
};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use vit_inputs::{BackendKind, Preset};

/// Whether a GPU fuses operations that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fusion {
    /// It does
    On,
    /// It does not
    Off,
}

/// What to measure. Lists are separated by commas, and every combination is measured.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Models
    #[arg(long, value_delimiter = ',', default_value = "vit,gpt")]
    pub part: Vec<Kind>,
    /// Size of the models [default: large on a GPU, small otherwise]
    #[arg(long)]
    pub preset: Option<Preset>,
    /// Images or sequences in a step [default: 1 and, for images, 8; 6 for the encoder]
    #[arg(long, value_delimiter = ',')]
    pub batch_size: Vec<NonZeroUsize>,
    /// Different tokens of the decoder [default: the preset's]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub vocabulary: Vec<NonZeroUsize>,
    /// Tokens in a sequence of the decoder [default: the preset's]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<NonZeroUsize>,
    /// Versions of Burn
    #[arg(long, value_delimiter = ',', default_value = "0.21,0.22")]
    pub burn: Vec<BurnVersion>,
    /// Backends; a build has those whose cargo feature is on [default: cuda and wgpu where there is a
    /// GPU, else flex]
    #[arg(long, value_delimiter = ',')]
    pub backend: Vec<BackendKind>,
    /// Whether a GPU fuses operations that follow each other; Burn 0.22 as it was built, with the cargo
    /// feature fusion or without
    #[arg(long, value_delimiter = ',', default_value = "on,off")]
    pub fusion: Vec<Fusion>,
    /// How Burn's optimizer gets its gradients
    #[arg(long, value_delimiter = ',', default_value = "plain,release")]
    pub mode: Vec<Mode>,
    /// What Burn's forward pass keeps for the backward pass
    #[arg(long, value_delimiter = ',', default_value = "none,balanced")]
    pub checkpointing: Vec<Checkpointing>,
    /// What models are made of in Burn
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pub operations: Vec<Operations>,
    /// How Burn computes the gradient of a linear layer's weight
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pub linear: Vec<LinearGradient>,
    /// Tokens whose loss a language model computes at once in Burn, in a scope that is recomputed:
    /// numbers, or `whole`
    #[arg(long, value_delimiter = ',', default_value = "whole")]
    pub loss_chunk: Vec<LossChunk>,
    /// How Burn reserves the memory of a GPU
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pub pools: Vec<Pools>,
    /// Optimizers in Burn [default: Adam, for the encoder AdamW]
    #[arg(long, value_delimiter = ',')]
    pub optimizer: Vec<OptimizerKind>,
    /// Modes of PyTorch
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "foreach,no-foreach,fused,hook,optimi"
    )]
    pub pytorch: Vec<TorchMode>,
    /// A Python that has PyTorch and, for optimi and torchao-8bit, torch-optimi and torchao
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
    /// Leave PyTorch out
    #[arg(long, conflicts_with = "python")]
    pub no_pytorch: bool,
    /// The settings that all runs share.
    #[command(flatten)]
    pub settings: Settings,
    /// Time limit of a run; a run that takes longer is left out
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = seconds)]
    pub time_limit: Duration,
    /// Start no run after this time; the most important runs come first [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub within: Option<Duration>,
    /// Folder for results.json and table.md
    #[arg(long, value_name = "FOLDER", default_value = "artifacts/benchmarks")]
    pub output: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: NonZeroUsize = text.parse().map_err(|error| format!("{error}"))?;
    Ok(Duration::from_secs(seconds.get() as u64))
}

impl Options {
    /// Fails if they do not fit each other.
    ///
    /// # Errors
    ///
    /// The option, and a way out.
    pub fn check(&self) -> Result<()> {
        let is_plain = self.vocabulary.is_empty() && self.context.is_none();
        ensure!(
            is_plain || self.part.contains(&Kind::Gpt),
            "--vocabulary and --context are sizes of the decoder: add --part gpt"
        );
        Ok(())
    }
}

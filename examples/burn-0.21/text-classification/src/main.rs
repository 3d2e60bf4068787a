//! The command line: trains the classifier with plain Burn, with gradient release, or both.

mod run;

use std::{num::NonZeroUsize, path::PathBuf};

use anyhow::{Result, ensure};
use burn::{
    nn::transformer::TransformerEncoderConfig,
    optim::{AdamConfig, decay::WeightDecayConfig},
};
use clap::{Parser, ValueEnum};
use peak_alloc::PeakAlloc;
use run::Run;
use text_classification::training::ExperimentConfig;

/// Counts every byte on the heap, which is where Flex keeps its tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Trains a text classifier with Burn's Learner, with and without gradient release
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Which training to run [default: both, one after the other]
    #[arg(value_enum)]
    mode: Option<Mode>,
    /// Passes over the reviews
    #[arg(long, default_value = "3")]
    epochs: NonZeroUsize,
    /// Folder for logs, checkpoints and models
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "artifacts/text-classification"
    )]
    artifact_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Plain Burn
    Plain,
    /// With gradient release
    Release,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let config = ExperimentConfig::new(
        TransformerEncoderConfig::new(384, 384, 8, 2)
            .with_dropout(0.02)
            .with_norm_first(true)
            .with_quiet_softmax(true),
        AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(5e-5))),
    )
    .with_num_epochs(cli.epochs.get());

    let modes = cli
        .mode
        .map_or(vec![Mode::Plain, Mode::Release], |mode| vec![mode]);
    let mut runs = Vec::new();
    for mode in modes {
        runs.push(Run::new(mode, &config, &cli.artifact_dir)?);
    }
    for run in &runs {
        println!("{run}");
    }
    if let [plain, release] = &runs[..] {
        ensure!(
            plain.weights == release.weights,
            "the two trainings reached different weights"
        );
        println!("the weights are the same, bit for bit");
    }
    Ok(())
}

//! The same training twice: [`plain`] on plain Burn, [`release`] with gradient release.
//!
//! The two files differ only in what gradient release requires.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use burn::{
    nn::{attention::SeqLengthOption, transformer::TransformerEncoderConfig},
    optim::AdamConfig,
    prelude::*,
};

pub mod plain;
pub mod release;

/// The settings of a training: model, data and optimizer.
#[derive(Config, Debug)]
pub struct ExperimentConfig {
    /// The shape of the encoder.
    pub transformer: TransformerEncoderConfig,
    /// The optimizer.
    pub optimizer: AdamConfig,
    /// Length of a review in tokens.
    #[config(default = "SeqLengthOption::Max(32)")]
    pub seq_length: SeqLengthOption,
    /// Number of product names in the reviews: most of the vocabulary.
    #[config(default = 3000)]
    pub num_names: usize,
    /// Number of training reviews.
    #[config(default = 1000)]
    pub num_train: usize,
    /// Number of validation reviews.
    #[config(default = 400)]
    pub num_valid: usize,
    /// Reviews in a step.
    #[config(default = 4)]
    pub batch_size: usize,
    /// Passes over the reviews.
    #[config(default = 3)]
    pub num_epochs: usize,
    /// Factor of Noam's schedule.
    #[config(default = 0.07)]
    pub lr_factor: f64,
    /// Steps until the learning rate is at its highest.
    #[config(default = 60)]
    pub warmup_steps: usize,
    /// Seed of the weights, of dropout and of the order of the reviews.
    #[config(default = 42)]
    pub seed: u64,
}

/// Creates the folder and removes the logs of an earlier training, which the summary would include.
fn create_artifact_dir(artifact_dir: &Path) -> Result<()> {
    for part in ["train", "valid", "checkpoint"] {
        let part = artifact_dir.join(part);
        if part.exists() {
            fs::remove_dir_all(&part)
                .with_context(|| format!("cannot remove {}", part.display()))?;
        }
    }
    fs::create_dir_all(artifact_dir)
        .with_context(|| format!("cannot create {}", artifact_dir.display()))
}

//! The settings of a run: options of the command line, saved in its folder.

use crate::config::{
    BackendKind, Checkpointing, Mode, Operations, OptimizerKind, Preset, VitConfig,
};
use crate::data::Dataset;
use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::{Deserialize, Serialize};

/// Images, shape of the model, how it is trained, and how that is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
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
    #[arg(long, value_enum, default_value_t = Preset::Tiny)]
    pub preset: Preset,
    /// Width and height of an image [default: those of the data, at most 224, rounded up to whole patches]
    #[arg(long, value_name = "PIXELS", value_parser = count())]
    pub image_size: Option<usize>,
    /// Width and height of a patch [default: the preset's]
    #[arg(long, value_name = "PIXELS", value_parser = count())]
    pub patch_size: Option<usize>,
    /// Passes over the training images
    #[arg(long, default_value = "20", value_parser = count())]
    pub epochs: usize,
    /// Images in a batch
    #[arg(long, default_value = "32", value_parser = count())]
    pub batch_size: usize,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine decay
    /// to zero
    #[arg(long, value_name = "RATE", default_value = "0.002", value_parser = rate)]
    pub lr: f64,
    /// Probability of dropout
    #[arg(long, value_name = "PROBABILITY", default_value = "0.1", value_parser = probability)]
    pub dropout: f64,
    /// Seed of the weights, of the order of the images and of dropout
    #[arg(long, default_value = "42")]
    pub seed: u64,
    /// Optimizer
    #[arg(long, value_enum, default_value_t = OptimizerKind::AdamW)]
    pub optimizer: OptimizerKind,
    /// Plain Burn or gradient release; the weights are the same
    #[arg(long, value_enum, default_value_t = Mode::Release)]
    pub mode: Mode,
    /// What the forward pass keeps for the backward pass; the weights are the same
    #[arg(long, value_enum, default_value_t = Checkpointing::None)]
    pub checkpointing: Checkpointing,
    /// What the model is made of; the weights are the same but for rounding, and so are the
    /// checkpoints
    #[arg(long, value_enum, default_value_t = Operations::Default)]
    pub operations: Operations,
    /// Backend; a build has those whose cargo feature is on
    #[arg(long, value_enum, default_value_t = BackendKind::Flex)]
    pub backend: BackendKind,
}

/// The settings that a resumed run may have others of. What is in the images says their digest.
pub(crate) const MAY_CHANGE: [&str; 5] = ["data", "mode", "checkpointing", "operations", "backend"];

impl Settings {
    pub(crate) fn load_data(&mut self) -> Result<Dataset> {
        let data = Dataset::load(&self.data, self.image_size, self.patch_size())?;
        let digest = data.digest();
        ensure!(
            self.data_digest.is_empty() || self.data_digest == digest,
            "the images of {} are not those that the run began with",
            self.data
        );
        self.data_digest = digest;
        Ok(data)
    }

    /// The shape of the model for these images.
    pub fn model(&self, data: &Dataset) -> VitConfig {
        VitConfig {
            patch_size: self.patch_size(),
            dropout: self.dropout,
            ..self.preset.config(data.size, data.channels, data.classes)
        }
    }

    /// The batches of all epochs.
    pub fn iterations(&self, data: &Dataset) -> usize {
        self.epochs * self.batches(data)
    }

    /// The batches of an epoch.
    pub fn batches(&self, data: &Dataset) -> usize {
        data.train.len().div_ceil(self.batch_size)
    }

    fn patch_size(&self) -> usize {
        self.patch_size.unwrap_or(self.preset.patch_size())
    }
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

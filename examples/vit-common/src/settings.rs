//! The settings that both examples have: options of the command line, saved in the folder of a run.

use crate::config::{Preset, VitConfig, WEIGHT_DECAY};
use crate::data::{Dataset, ImageSize};
use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Images, shape of the model, and how it is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
pub struct TrainSettings {
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
    #[arg(long, value_name = "PIXELS", value_parser = within(PIXELS))]
    pub image_size: Option<usize>,
    /// Width and height of a patch [default: the preset's]
    #[arg(long, value_name = "PIXELS", value_parser = within(PIXELS))]
    pub patch_size: Option<usize>,
    /// Passes over the training images
    #[arg(long, default_value = "20", value_parser = within(COUNT))]
    pub epochs: usize,
    /// Images in a batch
    #[arg(long, default_value = "32", value_parser = within(COUNT))]
    pub batch_size: usize,
    /// Highest learning rate, after a warm-up over a tenth of the batches and before a cosine decay
    /// to zero
    #[arg(long, value_name = "RATE", default_value = "0.002", value_parser = rate)]
    pub lr: f64,
    /// Decoupled weight decay of the AdamWs
    #[arg(long, value_name = "DECAY", default_value_t = WEIGHT_DECAY, value_parser = fraction)]
    pub weight_decay: f64,
    /// Probability of dropout
    #[arg(long, value_name = "PROBABILITY", default_value = "0.1", value_parser = fraction)]
    pub dropout: f64,
    /// Seed of the weights, of the order of the images and of dropout
    #[arg(long, default_value = "42")]
    pub seed: u64,
}

/// Width and height of images and patches.
const PIXELS: RangeInclusive<u64> = 1..=8192;

/// Epochs, and images in a batch: few enough that their product can be counted.
const COUNT: RangeInclusive<u64> = 1..=u32::MAX as u64;

impl TrainSettings {
    /// Loads the images.
    ///
    /// # Errors
    ///
    /// They cannot be read, or a resumed run began with others.
    pub fn load_data(&mut self) -> Result<Dataset> {
        let size = ImageSize {
            requested: self.image_size,
            patch_size: self.patch_size(),
        };
        let data = Dataset::load(&self.data, size)?;
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

fn within(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, |it| it > 0.0 && it <= 1.0, "above 0 and at most 1")
}

fn fraction(text: &str) -> Result<f64, String> {
    number(
        text,
        |it| (0.0..1.0).contains(&it),
        "at least 0 and below 1",
    )
}

/// A number that is as it must be.
///
/// # Errors
///
/// It is not.
pub fn number(text: &str, fits: fn(f64) -> bool, must_be: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|number| fits(*number));
    number.ok_or_else(|| format!("it must be {must_be}"))
}

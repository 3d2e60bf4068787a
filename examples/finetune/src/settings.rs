//! The settings of a training, which its folder keeps.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use lean_run_folder::checksum::digest;
use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;

/// Those that may be others when a training goes on.
pub const MAY_CHANGE: [&str; 5] = ["model", "text", "steps", "scratch", "memory"];

/// What is trained, and how.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Settings {
    /// The folder of `config.json`, `tokenizer.json` and `model.safetensors`
    pub model: PathBuf,
    /// Plain text, or `.jsonl` with `messages` or `text` in each line
    pub text: PathBuf,
    /// Checksums of the text, the tokenizer and the weights.
    #[arg(skip)]
    pub digests: Vec<String>,
    /// What is trained
    #[arg(long, value_enum, default_value = "five-bytes")]
    pub how: How,
    /// Steps of the training
    #[arg(long, default_value_t = 100)]
    pub steps: usize,
    /// Texts of a step
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Tokens of a text
    #[arg(long, default_value_t = 512)]
    pub context: usize,
    /// The learning rate [default: 1e-5, and 1e-4 with adapters]
    #[arg(long)]
    pub rate: Option<f64>,
    /// AdamW's weight decay, not of biases and gains
    #[arg(long, default_value_t = 0.0)]
    pub decay: f32,
    /// The rank of adapters. Their scale is 2
    #[arg(long, default_value_t = 16)]
    pub rank: usize,
    /// Decides the order of texts, and roundings
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// A folder on a disk for weights and states, in place of memory
    #[arg(long)]
    pub scratch: Option<PathBuf>,
    /// How much of them is in memory, in MiB
    #[arg(long, default_value_t = 1024)]
    pub memory: u64,
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize, Deserialize)]
pub enum How {
    /// All weights, in bf16, with AdamW in five bytes a weight
    FiveBytes,
    /// Adapters, over weights in bf16
    Lora,
    /// Adapters, over weights in four bits
    Nf4,
}

impl Settings {
    /// Looks at the numbers and at the files, which must be those that the training began with.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&mut self, config: &ModelConfig) -> Result<()> {
        ensure!(
            (2..=config.positions).contains(&self.context),
            "--context {}: the model has 2 to {} positions",
            self.context,
            config.positions
        );
        ensure!(
            !config.is_packed || self.how == How::Nf4,
            "the layers of the model are in four bits: train adapters, with --how nf4"
        );
        ensure!(self.batch > 0 && self.rank > 0, "a batch or a rank of 0");
        let files = self.files()?;
        let digests: Vec<_> = files
            .iter()
            .map(|it| digest(it))
            .collect::<io::Result<_>>()?;
        if !self.digests.is_empty() {
            let pairs = files.iter().zip(&digests).zip(&self.digests);
            for ((file, found), expected) in pairs {
                let shown = file.display();
                ensure!(
                    found == expected,
                    "{shown} is not what the training began with"
                );
            }
            ensure!(
                digests.len() == self.digests.len(),
                "{} has more or fewer files of weights than the training began with",
                self.model.display()
            );
        }
        self.digests = digests;
        Ok(())
    }

    /// Those that decide what is learned.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = vec![self.text.clone(), self.model.join("tokenizer.json")];
        for entry in fs::read_dir(&self.model)? {
            let path = entry?.path();
            if path.extension() == Some("safetensors".as_ref()) {
                files.push(path);
            }
        }
        files[2..].sort();
        Ok(files)
    }

    /// The learning rate.
    pub fn rate(&self) -> f64 {
        self.rate.unwrap_or(match self.how {
            How::FiveBytes => 1e-5,
            How::Lora | How::Nf4 => 1e-4,
        })
    }
}

//! The settings of a training run.

use crate::model::Recomputed;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use vit_common::display_as_value;
use vit_common::run;
use vit_common::settings::TrainSettings;

pub use vit_common::config::{Mode, Preset, WARM_UP, WEIGHT_DECAY};

/// The settings that determine the outcome of a run, and how it is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
pub struct Settings {
    /// Images, model and training.
    #[command(flatten)]
    #[serde(flatten)]
    pub train: TrainSettings,
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
    /// Device; a build has those whose cargo feature is on
    #[arg(long, value_enum, default_value_t = DeviceKind::first())]
    pub device: DeviceKind,
}

impl run::Settings for Settings {
    const MAY_CHANGE: &'static [&'static str] =
        &["data", "mode", "checkpointing", "operations", "device"];

    fn train(&mut self) -> &mut TrainSettings {
        &mut self.train
    }

    fn mode(&self) -> Mode {
        self.mode
    }
}

impl Settings {
    /// Fails if an option has no effect with the others; `given` names those on the command line.
    ///
    /// # Errors
    ///
    /// The option.
    pub fn check(&self, given: &[String]) -> Result<()> {
        let decays = matches!(
            self.optimizer,
            OptimizerKind::AdamW
                | OptimizerKind::AdamWOnePass
                | OptimizerKind::AdamW8bit
                | OptimizerKind::AdamWFiveBytes
        );
        ensure!(
            decays || !given.iter().any(|name| name == "weight_decay"),
            "--weight-decay is for --optimizer adamw, adamw-one-pass, adamw-8bit and adamw-five-bytes, \
             not for {}",
            self.optimizer
        );
        ensure!(
            !self.optimizer.is_in_bf16() || self.operations == Operations::Lean,
            "--optimizer adamw-five-bytes trains in bf16 with norms in f32, which need --operations lean"
        );
        Ok(())
    }
}

/// Optimizers of Burn 0.22 and of `burn_lean::optim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// AdamW: Adam with decoupled weight decay
    #[serde(rename = "adamw")]
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
    /// AdamW with weights in bf16, a correction of 8 bits and moments in 8 bits
    #[serde(rename = "adamw-five-bytes")]
    #[value(name = "adamw-five-bytes")]
    AdamWFiveBytes,
    /// Adafactor: a second moment of rows and columns
    Adafactor,
    /// LAMB: Adam with steps in proportion to the weights, for large batches
    Lamb,
    /// Stochastic gradient descent with momentum
    Sgd,
}

impl OptimizerKind {
    /// Whether its model is in bf16.
    pub fn is_in_bf16(self) -> bool {
        self == Self::AdamWFiveBytes
    }
}

/// What the forward pass keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// Every activation
    None,
    /// Recomputes what is cheap to recompute (Burn's balanced checkpointing)
    Balanced,
    /// The input of each transformer block; recomputes the block
    Blocks,
    /// As blocks, and recomputes half of each block once more: slower, and smaller
    Nested,
}

impl Checkpointing {
    /// The parts of the model that this recomputes.
    pub fn recomputed(self) -> Recomputed {
        match self {
            Self::None | Self::Balanced => Recomputed::Nothing,
            Self::Blocks => Recomputed::Blocks,
            Self::Nested => Recomputed::Nested,
        }
    }
}

/// What the model is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operations {
    /// Burn's modules
    Default,
    /// Those of `burn_lean::operations`, which save fewer tensors for the backward pass
    Lean,
}

/// Devices; a build has those whose cargo feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The CPU, with Burn's backend Flex
    Cpu,
    /// GPU through WebGPU
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl DeviceKind {
    /// The first device of this build.
    pub fn first() -> Self {
        match (cfg!(feature = "flex"), cfg!(feature = "wgpu")) {
            (true, _) => Self::Cpu,
            (_, true) => Self::Wgpu,
            _ => Self::Cuda,
        }
    }
}

display_as_value!(OptimizerKind, Checkpointing, Operations, DeviceKind);

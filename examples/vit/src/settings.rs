//! The settings of a training run.

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use vit_common::display_as_value;
use vit_common::run;
use vit_common::settings::TrainSettings;

pub use vit_common::config::{
    Checkpointing, Mode, Operations, OptimizerKind, Preset, WARM_UP, WEIGHT_DECAY,
};

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
    /// Choose operations, checkpointing and optimizer, where not given, so that a step has at most
    /// this memory in use, such as 300MiB: the first that fit, tried on the first batches
    #[arg(long, value_name = "MEMORY", conflicts_with_all = ["resume", "data_parallel"])]
    #[serde(skip)]
    pub fit: Option<ByteSize>,
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
        ensure!(
            self.optimizer.decays_weights() || !given.iter().any(|name| name == "weight_decay"),
            "--weight-decay is for the AdamWs, not for {}",
            self.optimizer
        );
        ensure!(
            self.checkpointing != Checkpointing::Automatic,
            "--checkpointing automatic is for Burn 0.21: use blocks or nested"
        );
        ensure!(
            !self.optimizer.is_in_bf16() || self.operations == Operations::Lean,
            "--optimizer adamw-five-bytes trains in bf16 with norms in f32, which need --operations lean"
        );
        Ok(())
    }
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

display_as_value!(DeviceKind);

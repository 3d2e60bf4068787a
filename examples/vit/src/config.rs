//! Optimizers, devices, and the settings of a training run.

use crate::model::{Recomputed, VitConfig};
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vit_common::display_as_value;
use vit_common::settings::identity;

pub use vit_common::config::{Mode, Preset, WARM_UP, WEIGHT_DECAY};

/// The optimizers of Burn 0.22 and of `burn_lean::optim`, each with its own defaults. Muon is not
/// among them: it takes matrices only, and a vision transformer also learns vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam
    Adam,
    /// Burn's Adam in one pass over memory
    AdamOnePass,
    /// Adam with moments in 8 bits
    #[serde(rename = "adam-8bit")]
    #[value(name = "adam-8bit")]
    Adam8bit,
    /// AdamW: Adam with decoupled weight decay
    #[serde(rename = "adamw")]
    #[value(name = "adamw")]
    AdamW,
    /// Burn's AdamW in one pass over memory
    #[serde(rename = "adamw-one-pass")]
    #[value(name = "adamw-one-pass")]
    AdamWOnePass,
    /// AdamW with moments in 8 bits
    #[serde(rename = "adamw-8bit")]
    #[value(name = "adamw-8bit")]
    AdamW8bit,
    /// AdamW with a rate that shrinks where gradients surprise
    #[serde(rename = "stable-adamw")]
    #[value(name = "stable-adamw")]
    StableAdamW,
    /// Adam that needs no warm-up
    #[serde(rename = "radam")]
    #[value(name = "radam")]
    RAdam,
    /// Adafactor: a second moment of rows and columns
    Adafactor,
    /// Adafactor's rule as AdaLomo has it
    #[serde(rename = "adalomo")]
    #[value(name = "adalomo")]
    AdaLomo,
    /// CAME: Adafactor with a first moment and confidence
    Came,
    /// Lion: one momentum, steps by its sign
    Lion,
    /// LAMB: Adam with steps in proportion to the weights
    Lamb,
    /// Stochastic gradient descent with momentum
    Sgd,
    /// AdaGrad
    #[serde(rename = "adagrad")]
    #[value(name = "adagrad")]
    AdaGrad,
    /// RMSProp
    #[serde(rename = "rmsprop")]
    #[value(name = "rmsprop")]
    RmsProp,
    /// Adan
    Adan,
}

impl OptimizerKind {
    /// Whether it is one with decoupled weight decay.
    pub fn decays_weights(self) -> bool {
        matches!(
            self,
            Self::AdamW | Self::AdamWOnePass | Self::AdamW8bit | Self::StableAdamW
        )
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operations {
    /// Burn's modules
    #[default]
    Default,
    /// Those of `burn_lean::operations`, which keep little for the backward pass
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
        let all = [Self::Cpu, Self::Wgpu, Self::Cuda];
        let compiled_in = all.into_iter().find(|kind| kind.is_compiled_in());
        compiled_in.unwrap_or(Self::Cpu)
    }

    /// Whether this build has the device.
    pub fn is_compiled_in(self) -> bool {
        match self {
            Self::Cpu => cfg!(feature = "flex"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// The cargo feature that it needs.
    pub fn feature(self) -> &'static str {
        match self {
            Self::Cpu => "flex",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }
}

display_as_value!(OptimizerKind, Checkpointing, Operations, DeviceKind);

/// Device, mode, checkpointing, operations and optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Device that holds the tensors.
    pub device: DeviceKind,
    /// How the optimizer gets its gradients.
    pub mode: Mode,
    /// What the forward pass keeps.
    pub checkpointing: Checkpointing,
    /// What the model is made of.
    #[serde(default)]
    pub operations: Operations,
    /// Optimizer.
    pub optimizer: OptimizerKind,
}

/// Settings that a resumed run may have others of. What is in the images says their digest.
const MAY_CHANGE: [&str; 5] = [
    "data",
    "engine.checkpointing",
    "engine.device",
    "engine.mode",
    "engine.operations",
];

/// The settings that determine the outcome of a training run; saved beside its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// The preset of the model.
    pub preset: Preset,
    /// The shape of the model.
    pub model: VitConfig,
    /// The images: a name, or the path of a folder.
    pub data: String,
    /// SHA-256 of the images as the model sees them, with their labels.
    pub data_digest: String,
    /// Device, mode, checkpointing and optimizer.
    pub engine: Engine,
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in a batch.
    pub batch_size: usize,
    /// The highest learning rate: reached after the warm-up, then falling along a cosine.
    pub learning_rate: f64,
    /// Decoupled weight decay; only AdamW and its relatives have one here.
    pub weight_decay: f64,
    /// Seed of the weights, of the order of the images and of dropout.
    pub seed: u64,
}

impl TrainConfig {
    /// The batches of all epochs over so many images.
    ///
    /// # Errors
    ///
    /// If they cannot be counted.
    pub fn iterations(&self, images: usize) -> Result<usize> {
        let batches = images.div_ceil(self.batch_size);
        self.epochs.checked_mul(batches).with_context(|| {
            let epochs = self.epochs;
            format!("--epochs {epochs} of {batches} batches are more than can be counted")
        })
    }

    /// What tells the run from others: all that must not change when it is resumed.
    ///
    /// # Errors
    ///
    /// A number that JSON does not have.
    pub fn identity(&self) -> Result<String> {
        Ok(identity(&serde_json::to_value(self)?, &MAY_CHANGE))
    }
}

#[cfg(test)]
impl TrainConfig {
    pub(crate) fn example() -> Self {
        Self {
            preset: Preset::Tiny,
            model: Preset::Tiny.config(8, 1, 10),
            data: "digits".into(),
            data_digest: "00".into(),
            engine: Engine {
                device: DeviceKind::Cpu,
                mode: Mode::Release,
                checkpointing: Checkpointing::None,
                operations: Operations::Default,
                optimizer: OptimizerKind::AdamW,
            },
            epochs: 3,
            batch_size: 32,
            learning_rate: 1.5e-3,
            weight_decay: WEIGHT_DECAY,
            seed: 42,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_saved() {
        let config = TrainConfig::example();
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(
            serde_json::from_slice::<TrainConfig>(&json).unwrap(),
            config
        );
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!(OptimizerKind::AdamW.to_string(), "adamw");
        assert_eq!(OptimizerKind::RmsProp.to_string(), "rmsprop");
        assert_eq!(DeviceKind::Cpu.to_string(), "cpu");
    }
}

//! Backends, and the settings of a training run.

use crate::device;
use anyhow::{Result, ensure};
use burn_gradient_release::Recompute;
use bytesize::ByteSize;
use clap::{ArgAction, Args, ValueEnum};
use lean_run_folder::{SettingsError, identity};
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use vit_common::display_as_value;
use vit_common::run;
use vit_common::settings::{TrainSettings, number};

pub use vit_common::config::{Checkpointing, Mode, OptimizerKind, Preset, WEIGHT_DECAY};

/// Backends; a build has those whose cargo feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "lower")]
pub enum BackendKind {
    /// Burn's portable CPU backend
    Flex,
    /// GPU through WebGPU
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl BackendKind {
    /// The first backend of this build.
    pub fn first() -> Self {
        if cfg!(feature = "flex") {
            Self::Flex
        } else if cfg!(feature = "wgpu") {
            Self::Wgpu
        } else {
            Self::Cuda
        }
    }

    /// Whether this build has the backend.
    pub fn is_compiled_in(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// Whether tensors live on the heap, where the counting allocator sees them.
    pub fn is_on_heap(self) -> bool {
        self == Self::Flex
    }
}

display_as_value!(BackendKind);

/// Those for which the training is compiled.
const OPTIMIZERS: [OptimizerKind; 5] = [
    OptimizerKind::AdamW,
    OptimizerKind::AdamWOnePass,
    OptimizerKind::AdamW8bit,
    OptimizerKind::Adafactor,
    OptimizerKind::Sgd,
];

/// Backend, mode, checkpointing and optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Args)]
pub struct Engine {
    /// Backend; a build has those whose cargo feature is on
    #[arg(long, value_enum, default_value_t = BackendKind::first())]
    pub backend: BackendKind,
    /// Run every operation on a GPU separately, instead of fused with its neighbours
    #[arg(long = "no-fusion", action = ArgAction::SetFalse)]
    pub fusion: bool,
    /// Plain Burn or gradient release; the weights are the same
    #[arg(long, value_enum, default_value_t = Mode::Release)]
    pub mode: Mode,
    /// What the forward pass keeps for the backward pass; the weights are the same
    #[arg(long, value_enum, default_value_t = Checkpointing::None)]
    pub checkpointing: Checkpointing,
    /// Memory for activations with --checkpointing automatic, such as 2GiB: what fits is kept,
    /// instead of recomputed [default: no budget, the lowest peak]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub activation_budget: Option<u64>,
    /// Optimizer
    #[arg(long, value_enum, default_value_t = OptimizerKind::AdamW)]
    pub optimizer: OptimizerKind,
}

impl Engine {
    /// What gradient release recomputes by itself.
    pub fn recompute(&self) -> Recompute {
        match (self.checkpointing, self.activation_budget) {
            (Checkpointing::Automatic, None) => Recompute::Automatic,
            (Checkpointing::Automatic, Some(bytes)) => Recompute::Budget(bytes),
            _ => Recompute::None,
        }
    }
}

fn bytes(size: &str) -> Result<u64, String> {
    size.parse().map(|size: ByteSize| size.as_u64())
}

fn norm(text: &str) -> Result<f64, String> {
    number(text, |it| it > 0.0 && it.is_finite(), "above 0")
}

/// The settings that determine the outcome of a run, and how it is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
pub struct Settings {
    /// Images, model and training.
    #[command(flatten)]
    #[serde(flatten)]
    pub train: TrainSettings,
    /// Backend, mode, checkpointing and optimizer.
    #[command(flatten)]
    #[serde(flatten)]
    pub engine: Engine,
    /// Batches whose gradients add up to one step; an incomplete step at the end of an epoch is
    /// dropped
    #[arg(long, value_name = "BATCHES", default_value = "1")]
    pub grads_accumulation: NonZeroUsize,
    /// No weight decay on biases, norms and embeddings, as is usual for transformers
    #[arg(long)]
    pub no_decay_on_norms: bool,
    /// Clip the gradients by their global norm: each step takes two backward passes, the first of
    /// which only measures [default: no clipping]
    #[arg(long, value_name = "NORM", value_parser = norm)]
    pub clip_grad_norm: Option<f64>,
}

impl run::Settings for Settings {
    const MAY_CHANGE: &'static [&'static str] = &[
        "data",
        "backend",
        "fusion",
        "mode",
        "checkpointing",
        "activation_budget",
    ];

    fn train(&mut self) -> &mut TrainSettings {
        &mut self.train
    }

    fn mode(&self) -> Mode {
        self.engine.mode
    }

    fn identity(&self) -> Result<String, SettingsError> {
        // As in the checkpoints of earlier runs.
        let identity = identity(self, Self::MAY_CHANGE)?;
        Ok(identity.replace("\"adamw\"", "\"adam-w\""))
    }
}

impl Settings {
    /// Fails if they do not fit each other or this machine; `given` names those on the command line,
    /// and an epoch has so many batches.
    ///
    /// # Errors
    ///
    /// The options, and a way out.
    pub fn check(&self, given: &[String], batches: usize) -> Result<()> {
        let accumulation = self.grads_accumulation.get();
        let is_given = |name: &str| given.iter().any(|given| given == name);
        let Engine {
            backend,
            mode,
            checkpointing,
            optimizer,
            ..
        } = self.engine;
        let is_release = mode == Mode::Release;
        let is_regularized = self.clip_grad_norm.is_some() || self.no_decay_on_norms;
        for (fits, refusal) in [
            (
                optimizer.decays_weights() || !is_given("weight_decay") && !self.no_decay_on_norms,
                format!(
                    "--weight-decay and --no-decay-on-norms are for the AdamWs, not for {optimizer}"
                ),
            ),
            (
                OPTIMIZERS.contains(&optimizer),
                format!("--optimizer {optimizer} is not in this example: `vit` has it"),
            ),
            (
                checkpointing != Checkpointing::Nested,
                "--checkpointing nested is for Burn 0.22: use blocks or automatic".into(),
            ),
            (
                accumulation <= batches,
                format!(
                    "--grads-accumulation {accumulation} is more than the {batches} batches of an \
                     epoch: no step would ever be taken"
                ),
            ),
            (
                is_release || !is_regularized,
                "--clip-grad-norm and --no-decay-on-norms need gradient release, as Burn 0.21 has \
                 neither: use --mode release"
                    .into(),
            ),
            (
                is_release
                    || matches!(checkpointing, Checkpointing::None | Checkpointing::Balanced),
                format!(
                    "--checkpointing {checkpointing} needs gradient release: use --mode release, \
                     or --checkpointing balanced with --mode {mode}"
                ),
            ),
            (
                checkpointing == Checkpointing::Automatic || !is_given("activation_budget"),
                format!(
                    "--activation-budget is for --checkpointing automatic, not for {checkpointing}"
                ),
            ),
            (
                !(is_given("fusion") && backend.is_on_heap()),
                format!("--no-fusion is for a GPU; {backend} never fuses"),
            ),
        ] {
            ensure!(fits, refusal);
        }
        device::require(backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written when the program called it `adam-w`.
    #[test]
    fn an_earlier_run_is_known_again() {
        let saved = r#"{
            "data": "digits", "data_digest": "401d", "preset": "tiny", "image_size": null,
            "patch_size": null, "epochs": 20, "batch_size": 32, "lr": 0.002, "weight_decay": 0.05,
            "dropout": 0.1, "seed": 42, "backend": "flex", "fusion": true, "mode": "release",
            "checkpointing": "none", "activation_budget": null, "optimizer": "adam-w",
            "grads_accumulation": 1, "no_decay_on_norms": false, "clip_grad_norm": null
        }"#;
        let settings: Settings = serde_json::from_str(saved).unwrap();
        assert_eq!(settings.engine.optimizer, OptimizerKind::AdamW);
        let identity = run::Settings::identity(&settings).unwrap();
        let expected = "batch_size: 32\ndata_digest: \"401d\"\ndropout: 0.1\nepochs: 20\n\
            grads_accumulation: 1\nlr: 0.002\nno_decay_on_norms: false\noptimizer: \"adam-w\"\n\
            preset: \"tiny\"\nseed: 42\nweight_decay: 0.05\n";
        assert_eq!(identity, expected);
    }
}

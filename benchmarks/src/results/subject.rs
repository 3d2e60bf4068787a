//! The model and the framework of a run.

use super::{Arithmetic, Checkpointing, TorchVersions};
use crate::shape::Shape;
use crate::value_name::value_name;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use vit_0_21::config::BackendKind;

/// The versions of Burn that are measured: before 0.22, a backend is a type parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum BurnVersion {
    /// With gradient release by the backend of burn-gradient-release
    #[serde(rename = "0.21")]
    #[value(name = "0.21")]
    V0_21,
    /// With gradient release by burn-lean
    #[serde(rename = "0.22")]
    #[value(name = "0.22")]
    V0_22,
}

impl fmt::Display for BurnVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&value_name(*self))
    }
}

/// How the optimizer gets its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plain Burn: all gradients first, then the step
    Plain,
    /// Gradient release: every parameter steps inside the backward pass
    Release,
    /// The backend of gradient release with nothing armed: the cost of the backend alone
    Unarmed,
    /// The floor, bytes only: every gradient dropped at once, no optimizer, plus the largest
    /// gradient
    Ideal,
}

/// How PyTorch's optimizer gets its gradients, and what the forward pass keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TorchMode {
    /// All parameters in a few calls, PyTorch's choice on CUDA
    Foreach,
    /// One parameter after the other
    NoForeach,
    /// All parameters in one kernel
    Fused,
    /// One parameter at a time inside the backward pass, as in PyTorch's tutorial
    Hook,
    /// optimi's gradient release
    Optimi,
    /// torchao's optimizer with moments in 8 bits
    #[serde(rename = "torchao-8bit")]
    #[value(name = "torchao-8bit")]
    Torchao8bit,
    /// `foreach`, with the activations of each block recomputed
    Checkpoint,
    /// `hook`, with the activations of each block recomputed
    HookCheckpoint,
}

impl TorchMode {
    /// The package that PyTorch needs beside it, if there is one that this Python lacks.
    pub fn lacks(self, versions: &TorchVersions) -> Option<&'static str> {
        match self {
            Self::Optimi if versions.optimi.is_none() => Some("torch-optimi"),
            Self::Torchao8bit if versions.torchao.is_none() => Some("torchao"),
            _ => None,
        }
    }
}

/// A framework with the settings that distinguish its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "framework", rename_all = "kebab-case")]
pub enum Subject {
    /// Burn.
    Burn {
        /// Its version.
        burn: BurnVersion,
        /// Backend that holds the tensors.
        backend: BackendKind,
        /// Whether a GPU fuses operations that follow each other.
        fusion: bool,
        /// How the optimizer gets its gradients.
        mode: Mode,
        /// What the forward pass keeps.
        checkpointing: Checkpointing,
        /// How the training computes.
        #[serde(flatten)]
        arithmetic: Arithmetic,
    },
    /// PyTorch.
    PyTorch {
        /// `cpu` or `cuda`.
        device: String,
        /// How the optimizer gets its gradients, and what the forward pass keeps.
        mode: TorchMode,
    },
}

impl Subject {
    /// The framework and the device.
    pub fn place(&self) -> String {
        match self {
            Self::Burn {
                burn,
                backend,
                fusion,
                ..
            } => {
                let unfused = if *fusion || backend.is_on_heap() {
                    ""
                } else {
                    ", no fusion"
                };
                format!("Burn {burn}, {backend}{unfused}")
            }
            Self::PyTorch { device, .. } => format!("PyTorch, {device}"),
        }
    }

    /// The mode, with the checkpointing if there is any, and with arithmetic that is not the
    /// default.
    pub fn name(&self) -> String {
        match self {
            Self::Burn {
                mode,
                checkpointing,
                arithmetic,
                ..
            } => {
                let mut words = vec![value_name(*mode)];
                if *checkpointing != Checkpointing::None {
                    words.push(checkpointing.to_string());
                }
                words.extend(arithmetic.words());
                words.join(", ")
            }
            Self::PyTorch { mode, .. } => value_name(*mode),
        }
    }

    /// Whether gradients are released in the backward pass.
    pub fn releases(&self) -> bool {
        match self {
            Self::Burn { mode, .. } => *mode == Mode::Release,
            Self::PyTorch { mode, .. } => matches!(
                mode,
                TorchMode::Hook | TorchMode::Optimi | TorchMode::HookCheckpoint
            ),
        }
    }
}

/// A model and a batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// Name of the model, for the table.
    pub name: String,
    /// The model.
    pub model: Shape,
    /// Images or sequences in a step.
    pub batch_size: usize,
}

impl Case {
    /// Model and batch size in one line.
    pub fn title(&self) -> String {
        format!("{}, batch {}", self.name, self.batch_size)
    }

    /// The case and the subject in one line.
    pub fn with(&self, subject: &Subject) -> String {
        format!("{}: {}, {}", self.title(), subject.place(), subject.name())
    }
}

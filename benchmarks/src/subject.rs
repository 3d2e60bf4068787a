//! What a run is: a model, a framework, and each choice of how it trains.

use crate::machine::TorchVersions;
use crate::shape::Shape;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::{NonZeroUsize, ParseIntError};
use std::str::FromStr;
use vit_inputs::BackendKind;
use vit_inputs::display_as_value;

pub use vit_inputs::{Checkpointing, Operations};

/// A model and a batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// A framework with the settings that distinguish its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "framework", rename_all = "kebab-case")]
pub enum Subject {
    /// Burn.
    Burn(Burn),
    /// PyTorch.
    PyTorch {
        /// `cpu` or `cuda`.
        device: String,
        /// How the optimizer gets its gradients, and what the forward pass keeps.
        mode: TorchMode,
        /// Adam or AdamW.
        optimizer: OptimizerKind,
    },
}

/// A run of Burn. Runs that differ in `operations`, `linear` or `loss_chunk` add up the same numbers
/// in another order: their weights differ by rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burn {
    /// The version of Burn.
    pub burn: BurnVersion,
    /// Backend that holds the tensors.
    pub backend: BackendKind,
    /// Whether a GPU fuses operations that follow each other.
    pub fusion: bool,
    /// How the optimizer gets its gradients.
    pub mode: Mode,
    /// What the forward pass keeps.
    pub checkpointing: Checkpointing,
    /// What the model is made of.
    pub operations: Operations,
    /// How the gradient of a linear layer's weight is computed.
    pub linear: LinearGradient,
    /// Tokens in a chunk of the loss.
    pub loss_chunk: LossChunk,
    /// How a GPU's memory is reserved.
    pub pools: Pools,
    /// The optimizer; as JSON null for the one that the model is trained with by default.
    pub optimizer: Option<OptimizerKind>,
}

/// Optimizers of Burn, of burn-gradient-release-optim and of burn-lean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam
    Adam,
    /// Burn's Adam in one pass over memory; the weights are the same
    AdamOnePass,
    /// Adam with moments in 8 bits
    #[serde(rename = "adam-8bit")]
    #[value(name = "adam-8bit")]
    Adam8bit,
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
    /// AdamW with weights in bf16 (in f16 where the device has no bf16), a correction of 8 bits and
    /// moments in 8 bits (Burn 0.22, lean operations)
    #[serde(rename = "adamw-five-bytes")]
    #[value(name = "adamw-five-bytes")]
    AdamWFiveBytes,
    /// Adafactor: a second moment of rows and columns
    Adafactor,
    /// LAMB: Adam with steps in proportion to the weights, for large batches (Burn 0.22)
    Lamb,
    /// Lion: one momentum, steps by its sign
    Lion,
    /// Stochastic gradient descent with momentum (Burn 0.22)
    Sgd,
}

impl OptimizerKind {
    /// Whether its model is in half precision.
    pub fn is_in_half(self) -> bool {
        self == Self::AdamWFiveBytes
    }
}

impl Burn {
    /// The choices that change weights, where they are not the default, as words for the table.
    pub fn arithmetic(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.operations == Operations::Lean {
            words.push("lean operations".into());
        }
        if self.linear == LinearGradient::Flat {
            words.push("flat linear".into());
        }
        if self.loss_chunk != LossChunk::WHOLE {
            words.push(format!("loss chunk {}", self.loss_chunk));
        }
        words.extend(self.optimizer.map(|optimizer| optimizer.to_string()));
        words
    }

    /// Whether kernels are made and chosen while it runs: those of another run may add up in another order.
    pub fn is_fused_or_tuned(&self) -> bool {
        let is_tuned = cfg!(feature = "autotune") || self.burn == BurnVersion::V0_21;
        !self.backend.is_on_heap() && (self.fusion || is_tuned)
    }
}

impl Subject {
    /// The framework and the device.
    pub fn place(&self) -> String {
        match self {
            Self::Burn(Burn {
                burn,
                backend,
                fusion,
                ..
            }) => {
                let is_unfused = !fusion && !backend.is_on_heap();
                let unfused = if is_unfused { ", no fusion" } else { "" };
                format!("Burn {burn}, {backend}{unfused}")
            }
            Self::PyTorch { device, .. } => format!("PyTorch, {device}"),
        }
    }

    /// The mode, with the checkpointing if there is any, and with arithmetic that is not the
    /// default.
    pub fn name(&self) -> String {
        match self {
            Self::Burn(run) => {
                let mut words = vec![run.mode.to_string()];
                if run.checkpointing != Checkpointing::None {
                    words.push(run.checkpointing.to_string());
                }
                if run.pools != Pools::Default {
                    words.push(format!("pools {}", run.pools));
                }
                words.extend(run.arithmetic());
                words.join(", ")
            }
            Self::PyTorch { mode, .. } => mode.to_string(),
        }
    }

    /// Whether gradients are released in the backward pass.
    pub fn releases(&self) -> bool {
        match self {
            Self::Burn(run) => run.mode == Mode::Release,
            Self::PyTorch { mode, .. } => {
                use TorchMode::{FlashOptim, FlashOptimCheckpoint, Hook, HookCheckpoint, Optimi};
                matches!(
                    mode,
                    Hook | Optimi | HookCheckpoint | FlashOptim | FlashOptimCheckpoint
                )
            }
        }
    }

    /// Whether its bytes are not those of a training, but the least that one could need.
    pub fn is_floor(&self) -> bool {
        matches!(self, Self::Burn(run) if run.mode == Mode::Ideal)
    }

    /// Whether the process that counts bytes also measures the time, as counting them costs nothing
    /// there.
    pub fn counts_for_free(&self) -> bool {
        match self {
            // The worker for Burn 0.21 counts bytes wherever it does not fuse. That for 0.22 asks the GPU
            // without a pause.
            Self::Burn(run) => {
                let is_metered = !run.fusion && run.burn == BurnVersion::V0_21;
                self.is_floor() || run.backend.is_on_heap() || is_metered
            }
            // On CUDA PyTorch always counts; on the CPU its profiler does.
            Self::PyTorch { device, .. } => device == "cuda",
        }
    }
}

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

/// How the optimizer gets its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plain Burn: all gradients first, then the step
    Plain,
    /// Gradient release: every parameter steps inside the backward pass
    Release,
    /// The backend of gradient release with nothing armed: the cost of the backend alone (Burn 0.21)
    Unarmed,
    /// The floor, bytes only: one more step that drops every gradient as soon as it exists, while the
    /// optimizer's state stays, plus the largest gradient (Burn 0.21)
    Ideal,
}

/// How the memory of a GPU is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pools {
    /// As CubeCL does by default
    Default,
    /// With `burn_lean::reuse_device_memory`: tensors of a weight's size share buffers (Burn 0.22)
    SizeMatch,
    /// Weights share pages with other tensors: CubeCL's `persistent_memory = "disabled"` (Burn 0.22)
    Disabled,
    /// As by default, and `memory_cleanup` after the first step (Burn 0.22)
    Cleanup,
}

/// How the gradient of a linear layer's weight is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LinearGradient {
    /// As in Burn: one product for each element of the batch, added up
    Default,
    /// One product, by the decorator `FlatLinear` (Burn 0.21 on flex)
    Flat,
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
    /// torchao's optimizer with moments in 8 bits, compiled in the first step
    #[serde(rename = "torchao-8bit")]
    #[value(name = "torchao-8bit")]
    Torchao8bit,
    /// FlashOptim's gradient release: weights in bf16 and 8 bits beside them, moments in 8 bits (CUDA)
    #[serde(rename = "flashoptim")]
    #[value(name = "flashoptim")]
    FlashOptim,
    /// `foreach`, with the activations of each block recomputed
    Checkpoint,
    /// `hook`, with the activations of each block recomputed
    HookCheckpoint,
    /// `flashoptim`, with the activations of each block recomputed
    #[serde(rename = "flashoptim-checkpoint")]
    #[value(name = "flashoptim-checkpoint")]
    FlashOptimCheckpoint,
}

impl TorchMode {
    /// Why this Python cannot run it, if it cannot.
    pub fn why_not(self, versions: &TorchVersions) -> Option<String> {
        let (package, version) = match self {
            Self::Optimi => ("torch-optimi", &versions.optimi),
            Self::Torchao8bit => ("torchao", &versions.torchao),
            Self::FlashOptim | Self::FlashOptimCheckpoint => {
                if versions.cuda.is_none() {
                    return Some("FlashOptim needs CUDA".into());
                }
                ("flashoptim", &versions.flashoptim)
            }
            _ => return None,
        };
        let is_missing = version.is_none();
        is_missing.then(|| format!("this Python does not have it: `pip install {package}`"))
    }
}

display_as_value!(
    BurnVersion,
    Mode,
    LinearGradient,
    OptimizerKind,
    Pools,
    TorchMode
);

/// Tokens whose loss is computed at once, in a scope whose activations are recomputed; as JSON, a
/// number, or null for all of them without a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LossChunk(pub Option<NonZeroUsize>);

impl LossChunk {
    /// The loss of all tokens at once, without a scope.
    pub const WHOLE: Self = Self(None);
}

impl FromStr for LossChunk {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        match text {
            "whole" => Ok(Self::WHOLE),
            number => number.parse().map(|tokens| Self(Some(tokens))),
        }
    }
}

impl fmt::Display for LossChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("whole"),
            Some(tokens) => tokens.fmt(f),
        }
    }
}

//! What a measuring process is asked to do: JSON on its command line.

use crate::results::{Arithmetic, BurnVersion, Checkpointing, Mode, Settings, TorchMode};
use crate::shape::Shape;
use crate::timeline::TimelineSpec;
use serde::{Deserialize, Serialize};
use vit_0_21::config::{BackendKind, OptimizerKind};

/// The hidden subcommand that makes this program a measuring process.
pub const CHILD: &str = "measure";

/// What a process measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Bytes, and seconds where counting takes no time.
    Memory,
    /// Seconds.
    Time,
    /// Allocations over time, by owner: the last [`STEPS`](crate::timeline::STEPS) of the measured
    /// steps are recorded.
    Timeline(TimelineSpec),
}

/// A run in Burn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The model.
    pub model: Shape,
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
    /// How the training computes.
    #[serde(flatten)]
    pub arithmetic: Arithmetic,
    /// What the process measures.
    pub measure: Purpose,
    /// Images or sequences in a step.
    pub batch_size: usize,
    /// The settings that all runs share.
    #[serde(flatten)]
    pub settings: Settings,
}

/// A run in PyTorch.
#[derive(Clone, Debug, Serialize)]
pub struct TorchSpec {
    /// The model.
    pub model: Shape,
    /// `cpu` or `cuda`.
    pub device: String,
    /// Adam or AdamW.
    pub optimizer: OptimizerKind,
    /// How the optimizer gets its gradients, and what the forward pass keeps.
    pub mode: TorchMode,
    /// What the process measures.
    pub measure: Purpose,
    /// Images or sequences in a step.
    pub batch_size: usize,
    /// The settings that all runs share.
    #[serde(flatten)]
    pub settings: Settings,
}

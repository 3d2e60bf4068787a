//! What a plan is made of: the options of a suite, and what the machine has of them.

use crate::results::{
    BurnVersion, Checkpointing, LeftOut, LinearGradient, LossChunk, Mode, Operations, Settings,
    TorchMode, TorchVersions,
};
use crate::shape::{Kind, Sizes};
use std::path::PathBuf;
use std::time::Duration;
use vit_0_21::config::{BackendKind, OptimizerKind, Preset};

/// The options of a suite.
#[derive(Clone, Debug)]
pub struct Request {
    /// The command line.
    pub command: Vec<String>,
    /// Models to train.
    pub kinds: Vec<Kind>,
    /// Whether to search the vocabulary that gradient release can train in plain Burn's memory.
    pub vocabulary: bool,
    /// Size of the models; without it, large on a GPU and small otherwise.
    pub preset: Option<Preset>,
    /// Sizes of the models in place of the preset's.
    pub sizes: Sizes,
    /// Images or sequences in a step; without it, 1 and, for images, 8; for the encoder, 6.
    pub batch_sizes: Vec<usize>,
    /// Versions of Burn.
    pub burns: Vec<BurnVersion>,
    /// Backends; without any, the GPU backends of this machine, else the CPU backend.
    pub backends: Vec<BackendKind>,
    /// Fusion on, off or both, on a GPU.
    pub fusion: Vec<bool>,
    /// Modes of Burn.
    pub modes: Vec<Mode>,
    /// What forward passes keep, in Burn.
    pub checkpointing: Vec<Checkpointing>,
    /// What models are made of, in Burn.
    pub operations: Vec<Operations>,
    /// How the gradient of a linear layer's weight is computed, in Burn.
    pub linear: Vec<LinearGradient>,
    /// Tokens in a chunk of a language model's loss, in Burn.
    pub loss_chunks: Vec<LossChunk>,
    /// Optimizers in Burn; without any, the one that a model is trained with by default.
    pub optimizers: Vec<OptimizerKind>,
    /// A Python that may have PyTorch; `None` leaves PyTorch out.
    pub python: Option<PathBuf>,
    /// Modes of PyTorch.
    pub torch_modes: Vec<TorchMode>,
    /// The folder of memory timelines; `None` records none.
    pub timelines: Option<PathBuf>,
    /// The settings that all runs share.
    pub settings: Settings,
    /// Time limit of a process.
    pub time_limit: Duration,
    /// Time after which no run is started.
    pub within: Option<Duration>,
}

/// What this machine has of a request.
#[derive(Clone, Debug)]
pub struct Available {
    /// Backends to measure, the most important first.
    pub backends: Vec<BackendKind>,
    /// Backends that are missing.
    pub missing: Vec<LeftOut>,
    /// The versions of PyTorch, or why it is not measured.
    pub pytorch: Result<TorchVersions, String>,
}

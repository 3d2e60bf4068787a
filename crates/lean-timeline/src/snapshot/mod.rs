//! A recording: which memory was held, from when to when, and for what.
//!
//! Time is counted in *ticks*: each allocation, each release and each mark is one tick, from 0. A
//! holder lives in the ticks `from..until`.

mod event;
mod file;
mod perfetto;
pub(crate) mod phases;
mod pytorch;
mod read;

use serde::{Deserialize, Serialize};

pub use file::SnapshotError;

/// The memory of a few steps of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The title that the recorder was given: `ViT-S/16, plain`.
    pub title: String,
    /// The name of the backend.
    pub backend: String,
    /// The parameters of the model, in the order of the module's visitor.
    pub parameters: Vec<Parameter>,
    /// The names of all operations; [`Holder::operation`] is an index into it.
    pub operations: Vec<String>,
    /// The time of each tick, in microseconds since the start of the recording; never falling.
    pub times: Vec<u64>,
    /// All pieces of memory, in the order of [`Holder::from`].
    #[serde(skip)]
    pub holders: Vec<Holder>,
    /// The phases of the training, in the order of [`Phase::from`]. A phase comes before those that
    /// it contains.
    pub phases: Vec<Phase>,
    /// The samples of the allocator or the device, in the order of [`Sample::tick`].
    pub samples: Vec<Sample>,
    /// Shortcomings of the recording, in sentences.
    pub warnings: Vec<String>,
}

/// A parameter of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its path in the module: `blocks.3.mlp.fc1.weight`.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is that of an embedding.
    #[serde(default)]
    pub is_embedding: bool,
}

/// The purpose for which memory is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The weights.
    Parameters,
    /// The tensors that the optimizer keeps from step to step.
    OptimizerState,
    /// Memory that belongs to no step: tensors from before the recording, batches made in advance,
    /// metrics.
    Other,
    /// The tensors that the forward pass keeps for the backward pass.
    Activations,
    /// The gradients of parameters.
    Gradients,
    /// Memory that is released before its phase ends, such as the gradients of activations.
    Temporaries,
}

impl Category {
    /// All categories, in the order in which they are stacked, the lowest first.
    pub const ALL: [Self; 6] = [
        Self::Parameters,
        Self::OptimizerState,
        Self::Other,
        Self::Activations,
        Self::Gradients,
        Self::Temporaries,
    ];

    /// Its name in texts, and its name in PyTorch's snapshots.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Parameters => ("parameters", "parameter"),
            Self::OptimizerState => ("optimizer state", "optimizer_state"),
            Self::Other => ("other", "unknown"),
            Self::Activations => ("activations", "activation"),
            Self::Gradients => ("gradients", "gradient"),
            Self::Temporaries => ("temporaries", "temporary"),
        }
    }

    fn of_pytorch(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|of| of.names().1 == name);
        found.unwrap_or(Self::Other)
    }

    /// Its name in texts: `optimizer state`.
    pub fn name(self) -> &'static str {
        self.names().0
    }
}

/// A piece of memory with one purpose, from its allocation to its release.
///
/// Where memory changes its purpose, one holder ends and another begins at the same tick: a
/// gradient whose memory the new parameter is written into is followed by that parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its size.
    pub bytes: u64,
    /// Its purpose.
    pub category: Category,
    /// The parameter that it is, or that it was computed for: an index into
    /// [`Snapshot::parameters`].
    pub parameter: Option<usize>,
    /// The operation that made it: an index into [`Snapshot::operations`].
    pub operation: usize,
    /// The tick at which it begins.
    pub from: usize,
    /// The tick of its release; the number of ticks, if it outlives the recording.
    pub until: usize,
}

/// A kind of [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// From the batch to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
    /// The optimizer's call, over all parameters.
    Optimizer,
    /// The step of one parameter: within [`Optimizer`](Self::Optimizer), or, with gradient release,
    /// within [`Backward`](Self::Backward). An index into [`Snapshot::parameters`].
    Step(usize),
}

/// A range of ticks in which the training does one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The part of the training step.
    pub kind: PhaseKind,
    /// Index of the training step in this recording, from 0.
    pub iteration: usize,
    /// Its first tick.
    pub from: usize,
    /// The tick after its last one.
    pub until: usize,
}

/// A reading of the allocator or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The tick before it.
    pub tick: usize,
    /// Bytes in use.
    pub in_use: u64,
    /// The most bytes in use since the previous sample. It includes workspaces: memory that an
    /// operation releases before it returns, which is in no holder.
    pub peak: u64,
}

//! What was recorded: who held how many bytes, and when.
//!
//! Time is counted in *ticks*: every allocation, every release and every mark is one tick, numbered
//! from 0. A holder lives in the ticks `from..until`; after tick `t` the memory in use is what is
//! held by all whose range contains `t`.

mod error;
mod file;

pub use error::SnapshotError;
pub use file::VERSION;

use serde::{Deserialize, Serialize};

/// The memory of a training, over a few of its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// What was recorded, in the words of who recorded it: `ViT-S/16, plain`.
    pub title: String,
    /// The backend by its own name.
    pub backend: String,
    /// The parameters of the model, in the order in which a visitor of the module meets them.
    pub parameters: Vec<Parameter>,
    /// The names of all operations that made a holder; [`Holder::operation`] is an index into it.
    pub operations: Vec<String>,
    /// When each tick was, in microseconds since the start of the recording; never falling.
    pub times: Vec<u64>,
    /// Everybody who held memory, in the order of [`Holder::from`].
    pub holders: Vec<Holder>,
    /// What the training was doing, in the order of [`Phase::from`]; those that contain another
    /// come first.
    pub phases: Vec<Phase>,
    /// What the allocator or the device said, in the order of [`Sample::tick`].
    pub samples: Vec<Sample>,
    /// What the recorder could not do, for people to read; empty where it could do everything.
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
}

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// The weights.
    Parameters,
    /// What the optimizer keeps from step to step.
    OptimizerState,
    /// The gradients of parameters.
    Gradients,
    /// What the forward pass leaves for the backward pass.
    Activations,
    /// What is gone before its phase ends, the gradients of activations among it.
    Temporaries,
    /// What belongs to no step: what lived before the recording, batches made in advance, metrics.
    Other,
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

    /// What people call it: `optimizer state`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::OptimizerState => "optimizer state",
            Self::Gradients => "gradients",
            Self::Activations => "activations",
            Self::Temporaries => "temporaries",
            Self::Other => "other",
        }
    }

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) fn layer(self) -> usize {
        match self {
            Self::Parameters => 0,
            Self::OptimizerState => 1,
            Self::Other => 2,
            Self::Activations => 3,
            Self::Gradients => 4,
            Self::Temporaries => 5,
        }
    }
}

/// A piece of memory, from when it was taken, or became what it is, to when it was let go of.
///
/// Memory that changes its purpose, as a gradient's that the new parameter is written into, is one
/// holder that ends and another that begins at the same tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its size.
    pub bytes: u64,
    /// What it is for.
    pub category: Category,
    /// The parameter that it is, or is made for: an index into [`Snapshot::parameters`].
    pub parameter: Option<usize>,
    /// The operation that made it: an index into [`Snapshot::operations`].
    pub operation: usize,
    /// The tick at which it begins.
    pub from: usize,
    /// The tick at which it is gone; the number of ticks, if it outlives the recording.
    pub until: usize,
}

/// What a training does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// A stretch of ticks in which the training does one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What it does.
    pub kind: PhaseKind,
    /// The number of the training step in this recording, from 0.
    pub iteration: usize,
    /// Its first tick.
    pub from: usize,
    /// The tick after its last one.
    pub until: usize,
}

/// What the allocator or the device says is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// After which tick.
    pub tick: usize,
    /// Bytes in use then.
    pub in_use: u64,
    /// The most bytes in use since the sample before: what an operation takes for itself and gives
    /// back before it returns is in nobody's hands at any tick.
    pub peak: u64,
    /// The operation that ended at this sample, and is who made its peak: an index into
    /// [`Snapshot::operations`].
    pub operation: Option<usize>,
}

//! Everything that was measured, as it stands in the JSON file.

mod checkpointing;
mod measured;
mod provenance;
mod subject;

pub use crate::arithmetic::{Arithmetic, LinearGradient, LossChunk, Operations};
pub use crate::value_name::value_name;
pub use checkpointing::Checkpointing;
pub use measured::{Bytes, Items, Measured, Phase, Recomputation};
pub use provenance::{Machine, TorchVersions, Versions};
pub use subject::{BurnVersion, Case, Mode, Subject, TorchMode};

use crate::stats::median;
use serde::{Deserialize, Serialize};

/// The version of the JSON file: it grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// The results of one suite.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// Versions of the libraries.
    pub versions: Versions,
    /// The settings that all runs share.
    pub settings: Settings,
    /// Every run, in the order of time.
    pub runs: Vec<Run>,
    /// The larger vocabulary that gradient release can train in the memory of plain Burn.
    pub vocabulary: Vec<Vocabulary>,
    /// What was not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// What was to be measured, and went wrong.
    pub failed: Vec<LeftOut>,
}

/// The settings that all runs share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Steps before the measured ones.
    pub warm_up: usize,
    /// Measured steps.
    pub steps: usize,
    /// Repetitions of each run.
    pub repeat: usize,
    /// Learning rate.
    pub learning_rate: f64,
    /// Seed of weights and batches.
    pub seed: u64,
}

/// Something that is missing from the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// What is missing.
    pub what: String,
    /// The reason.
    pub why: String,
}

impl LeftOut {
    /// Creates the entry.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
        }
    }
}

/// A run: one line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Model and batch size.
    pub case: Case,
    /// Framework and mode.
    pub subject: Subject,
    /// Repetition index, from 0.
    pub repetition: usize,
    /// The median of the measured steps.
    pub step_milliseconds: Option<f64>,
    /// Whether the seconds come from a separate process that did not count bytes.
    pub timed_apart: bool,
    /// The items of the peak.
    pub items: Option<Items>,
    /// Its memory timeline, if one was recorded.
    pub timeline: Option<Timeline>,
    /// The output of its process.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Run {
    /// Combines what the processes of a run measured.
    pub fn new(
        case: &Case,
        subject: &Subject,
        repetition: usize,
        measurements: Measurements,
    ) -> Self {
        let Measurements { memory, time } = measurements;
        let timed_apart = time.is_some();
        let mut measured = memory;
        if let Some(time) = time {
            measured.step_seconds = time.step_seconds;
        }
        let floor = matches!(subject, Subject::Burn { mode, .. } if *mode == Mode::Ideal);
        let items = measured.memory.filter(|_| !floor);
        Self {
            case: case.clone(),
            subject: subject.clone(),
            repetition,
            // The floor is about bytes; its seconds are those of release.
            step_milliseconds: median(&measured.step_seconds)
                .filter(|_| !floor)
                .map(|seconds| 1e3 * seconds),
            timed_apart,
            items: items.map(|bytes| Items::new(&measured, bytes)),
            timeline: None,
            measured,
        }
    }

    /// Whether both trained a model of the same size, as the runs of one case must.
    pub fn is_like(&self, other: &Self) -> bool {
        let size = |run: &Self| (run.measured.parameters, run.measured.largest_parameter);
        size(self) == size(other)
    }
}

/// What the processes of a run measured.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// The process that counted bytes.
    pub memory: Measured,
    /// The process that measured the time, if it was a separate one.
    pub time: Option<Measured>,
}

/// A memory timeline that was recorded, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The file, relative to the folder of the results.
    pub file: String,
    /// SHA-256 of the weights after it: the same as the run's.
    pub weights_digest: String,
    /// Seconds of the recorded steps.
    pub recorded_step_seconds: Vec<f64>,
    /// Seconds of the measured steps before them, in the same process.
    pub unrecorded_step_seconds: Vec<f64>,
}

/// The largest vocabulary that gradient release trains within the peak of plain Burn.
#[derive(Clone, Debug, Serialize)]
pub struct Vocabulary {
    /// The decoder.
    pub model: String,
    /// Framework and device.
    pub place: String,
    /// How the training computes.
    #[serde(flatten)]
    pub arithmetic: Arithmetic,
    /// Vocabulary of the preset, or the one that was asked for in its place.
    pub vocabulary: usize,
    /// Peak of plain Burn with it.
    pub plain_peak_bytes: u64,
    /// Peak of gradient release with it.
    pub release_peak_bytes: u64,
    /// The largest measured vocabulary whose peak with gradient release is within plain Burn's.
    pub release_vocabulary: usize,
    /// Its peak.
    pub release_vocabulary_peak_bytes: u64,
    /// Every measurement with gradient release: vocabulary and peak.
    pub measured: Vec<(usize, u64)>,
}

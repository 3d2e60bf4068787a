//! Everything that was measured; this is the JSON file.

use crate::machine::{Machine, Versions};
use crate::measure::{Bytes, Measured, Mode};
use crate::pytorch::TorchMode;
use crate::shape::Shape;
use crate::stats::median;
use crate::timeline::Timeline;
use crate::vocabulary::Vocabulary;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vit::config::{BackendKind, Checkpointing};

/// The version of the JSON file: it grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was called.
    pub command: Vec<String>,
    /// Where.
    pub machine: Machine,
    /// With what.
    pub versions: Versions,
    /// How.
    pub settings: Settings,
    /// Every run, in the order of time.
    pub runs: Vec<Run>,
    /// What the saving buys in vocabulary.
    pub vocabulary: Vec<Vocabulary>,
    /// What was not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// What was to be measured, and went wrong.
    pub failed: Vec<LeftOut>,
}

/// What all runs have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Steps that are not measured.
    pub warm_up: usize,
    /// Steps that are.
    pub steps: usize,
    /// How often each run was repeated.
    pub repeat: usize,
    /// Learning rate.
    pub learning_rate: f64,
    /// Seed of weights and batches.
    pub seed: u64,
}

/// Something that is missing from the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Who trains, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "framework", rename_all = "kebab-case")]
pub enum Subject {
    /// Burn.
    Burn {
        /// Where the tensors live.
        backend: BackendKind,
        /// Whether a GPU fuses operations that follow each other.
        fusion: bool,
        /// How the optimizer gets its gradients.
        mode: Mode,
        /// What the forward pass keeps.
        checkpointing: Checkpointing,
    },
    /// PyTorch.
    PyTorch {
        /// `cpu` or `cuda`.
        device: String,
        /// How Adam gets its gradients.
        mode: TorchMode,
    },
}

impl Subject {
    /// The framework and where it computes.
    pub fn place(&self) -> String {
        match self {
            Self::Burn {
                backend, fusion, ..
            } => {
                let unfused = if *fusion || backend.is_on_heap() {
                    ""
                } else {
                    ", no fusion"
                };
                format!("Burn, {backend}{unfused}")
            }
            Self::PyTorch { device, .. } => format!("PyTorch, {device}"),
        }
    }

    /// How it trains there.
    pub fn name(&self) -> String {
        match self {
            Self::Burn {
                mode,
                checkpointing,
                ..
            } => {
                let name = value_name(*mode);
                match checkpointing {
                    Checkpointing::None => name,
                    Checkpointing::Balanced => format!("{name}, balanced"),
                }
            }
            Self::PyTorch { mode, .. } => value_name(*mode),
        }
    }

    /// Whether gradients are released in the backward pass.
    pub fn releases(&self) -> bool {
        match self {
            Self::Burn { mode, .. } => *mode == Mode::Release,
            Self::PyTorch { mode, .. } => matches!(mode, TorchMode::Hook | TorchMode::Optimi),
        }
    }
}

/// The name on the command line.
pub fn value_name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().into())
}

/// What a run trains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// For people.
    pub name: String,
    /// The model.
    pub model: Shape,
    /// Images or sequences in a step.
    pub batch_size: usize,
}

impl Case {
    /// Model and batch in one line.
    pub fn title(&self) -> String {
        format!("{}, batch {}", self.name, self.batch_size)
    }
}

/// A run: one line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was trained.
    pub case: Case,
    /// Who trained.
    pub subject: Subject,
    /// The how-manieth time, from 0.
    pub repetition: usize,
    /// The median of the measured steps.
    pub step_milliseconds: Option<f64>,
    /// Whether the seconds are those of a process in which nobody counted bytes.
    pub timed_apart: bool,
    /// Where the bytes of the peak are.
    pub items: Option<Items>,
    /// Its memory timeline, if one was asked for.
    pub timeline: Option<Timeline>,
    /// All that the process said.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Run {
    /// Puts together what the processes of a run measured.
    pub fn new(case: &Case, subject: &Subject, repetition: usize, both: Both) -> Self {
        let Both { memory, time } = both;
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
}

impl Run {
    /// Whether both trained a model of the same size, as runs of one case have to.
    pub fn is_like(&self, other: &Self) -> bool {
        let size = |run: &Self| (run.measured.parameters, run.measured.largest_parameter);
        size(self) == size(other)
    }
}

/// What the processes of a run measured.
#[derive(Clone, Debug)]
pub struct Both {
    /// The process that counted bytes.
    pub memory: Measured,
    /// The process that took the time, if that was another.
    pub time: Option<Measured>,
}

/// When the peak was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// In the forward pass.
    Forward,
    /// In the backward pass.
    Backward,
    /// In the optimizer's step after it.
    Step,
}

/// The peak, item by item: `peak = parameters + optimizer_state + held + temporaries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Items {
    /// P, computed: 4 bytes for each number in the model.
    pub parameters: u64,
    /// O, measured.
    pub optimizer_state: u64,
    /// The sum of all gradients, computed: as the parameters.
    pub all_gradients: u64,
    /// The largest gradient, computed.
    pub largest_gradient: u64,
    /// A, measured: what the forward pass leaves alive, its batch included.
    pub activations: u64,
    /// G, measured: what the backward pass leaves alive.
    pub gradients: u64,
    /// When the peak was.
    pub peak_in: Phase,
    /// What that phase begins or ends with beyond P and O, whichever is more: in the backward pass
    /// A or G, in the forward pass A, in the step G.
    pub held: u64,
    /// The rest of the peak: what lives for a moment in that phase. With gradient release the one
    /// gradient that is being stepped is in it.
    pub temporaries: i64,
    /// What was taken from the device beyond what was in use, at their peaks.
    pub fragmentation: Option<u64>,
}

impl Items {
    fn new(measured: &Measured, bytes: Bytes) -> Self {
        let beyond = |live: u64| live.saturating_sub(bytes.live_before);
        let parameters = 4 * measured.parameters;
        let activations = beyond(bytes.live_after_forward);
        let gradients = beyond(bytes.live_after_backward);
        let (_, peak_in, held) = [
            (bytes.peak_in_forward, Phase::Forward, activations),
            (
                bytes.peak_in_backward,
                Phase::Backward,
                activations.max(gradients),
            ),
            (bytes.peak_in_step, Phase::Step, gradients),
        ]
        .into_iter()
        .rev() // Of equals, the first.
        .max_by_key(|(peak, ..)| *peak)
        .unwrap_or((0, Phase::Backward, 0));
        let explained = parameters + bytes.optimizer_state_bytes + held;
        Self {
            parameters,
            optimizer_state: bytes.optimizer_state_bytes,
            all_gradients: parameters,
            largest_gradient: 4 * measured.largest_parameter,
            activations,
            gradients,
            peak_in,
            held,
            temporaries: bytes.peak_bytes as i64 - explained as i64,
            fragmentation: bytes
                .peak_reserved_bytes
                .map(|reserved| reserved.saturating_sub(bytes.peak_bytes)),
        }
    }

    /// What gradient release needs at least: parameters and state, activations, and the largest
    /// gradient.
    pub fn floor(&self) -> u64 {
        self.parameters + self.optimizer_state + self.activations + self.largest_gradient
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> Bytes {
        Bytes {
            peak_bytes: 460,
            peak_reserved_bytes: Some(500),
            warm_up_peak_bytes: 450,
            optimizer_state_bytes: 200,
            live_before: 300,
            live_after_forward: 340,
            live_after_backward: 400,
            live_after_step: 300,
            peak_in_forward: 345,
            peak_in_backward: 410,
            peak_in_step: 460,
        }
    }

    fn measured() -> Measured {
        Measured {
            backend: "a backend".into(),
            parameters: 25,
            largest_parameter: 10,
            step_seconds: vec![1.0],
            final_loss: 1.0,
            weights_digest: "00".into(),
            memory: Some(bytes()),
        }
    }

    #[test]
    fn items_add_up_to_the_peak() {
        let items = Items::new(&measured(), bytes());
        assert_eq!((items.parameters, items.optimizer_state), (100, 200));
        assert_eq!((items.activations, items.gradients), (40, 100));
        assert_eq!((items.peak_in, items.held), (Phase::Step, 100));
        assert_eq!(items.temporaries, 60);
        assert_eq!(items.fragmentation, Some(40));
        assert_eq!(items.floor(), 100 + 200 + 40 + 40);

        let released = Bytes {
            peak_bytes: 380,
            live_after_backward: 300,
            peak_in_backward: 380,
            peak_in_step: 300,
            ..bytes()
        };
        let items = Items::new(&measured(), released);
        assert_eq!((items.peak_in, items.held), (Phase::Backward, 40));
        assert_eq!((items.gradients, items.temporaries), (0, 40));
    }
}

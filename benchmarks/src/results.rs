//! Everything that was measured, as it stands in the JSON file.

use crate::machine::Facts;
use crate::subject::{Case, Subject};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use vit_inputs::rate;

/// The version of the JSON file: it grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 2;

/// The results of one suite.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Facts,
    /// Versions of the libraries.
    pub versions: Facts,
    /// The settings that all runs share.
    pub settings: Settings,
    /// Every run, in the order of time.
    pub runs: Vec<Run>,
    /// What was not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// What was to be measured, and went wrong.
    pub failed: Vec<LeftOut>,
}

/// The settings that all runs share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, Args)]
pub struct Settings {
    /// Measured steps
    #[arg(long, default_value = "5")]
    pub steps: NonZeroUsize,
    /// Steps before the measured ones, which compile kernels and create the optimizer's state
    #[arg(long, default_value = "3")]
    pub warm_up: NonZeroUsize,
    /// Repetitions of every run, in turn, every second time in reverse: plain, release, release,
    /// plain, ...
    #[arg(long, default_value = "1")]
    pub repeat: NonZeroUsize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value = "0.001", value_parser = rate)]
    pub lr: f64,
    /// Seed of weights and batches
    #[arg(long, default_value = "42")]
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
    /// The output of its process.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Run {
    /// Combines what the process that counted bytes has measured with what the one that measured the
    /// time has, if that was another.
    pub fn new(
        case: &Case,
        subject: &Subject,
        repetition: usize,
        mut measured: Measured,
        time: Option<Measured>,
    ) -> Self {
        let timed_apart = time.is_some();
        if let Some(time) = time {
            measured.step_seconds = time.step_seconds;
        }
        // The floor is about bytes; its seconds are those of release.
        let is_training = !subject.is_floor();
        let bytes = measured.memory.filter(|_| is_training);
        let seconds = median(&measured.step_seconds).filter(|_| is_training);
        Self {
            case: case.clone(),
            subject: subject.clone(),
            repetition,
            step_milliseconds: seconds.map(|seconds| 1e3 * seconds),
            timed_apart,
            items: bytes.map(|bytes| Items::new(&measured, bytes)),
            measured,
        }
    }

    /// Number and largest of the parameters, in which the runs of a case agree.
    pub fn size(&self) -> [u64; 2] {
        [self.measured.parameters, self.measured.largest_parameter]
    }
}

/// What a process measured, in Rust or in Python.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the backend.
    pub backend: String,
    /// Elements of the model.
    pub parameters: u64,
    /// Elements of its largest parameter.
    pub largest_parameter: u64,
    /// Seconds of each measured step, from the batch on the host to after the optimizer.
    pub step_seconds: Vec<f64>,
    /// Loss of the last measured step, before its update.
    pub final_loss: f64,
    /// SHA-256 of the weights after the last measured step.
    pub weights_digest: String,
    /// Bytes, if the process counted them.
    pub memory: Option<Bytes>,
    /// Where those bytes were at the peak, if the backend tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
}

/// A pool of a GPU's memory at the peak in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// What the pool is for.
    pub name: String,
    /// Bytes of a page, where all pages of the pool have the same size.
    pub page_bytes: Option<u64>,
    /// Pages that are held.
    pub pages: u64,
    /// Bytes that tensors use.
    pub in_use_bytes: u64,
    /// Bytes of all pages.
    pub reserved_bytes: u64,
}

/// Bytes in use, all beyond those before the model was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The highest sum in any measured step.
    pub peak_bytes: u64,
    /// The highest sum reserved from the device, on backends that count it.
    pub peak_reserved_bytes: Option<u64>,
    /// The highest sum while the model was built and in the warm-up steps.
    pub warm_up_peak_bytes: u64,
    /// Bytes freed when the optimizer's state was dropped at the end.
    pub optimizer_state_bytes: u64,
    /// In one more step, which synchronizes the device after each stage: before the batch is made.
    pub live_before: u64,
    /// After the forward pass.
    pub live_after_forward: u64,
    /// After the backward pass.
    pub live_after_backward: u64,
    /// After the optimizer.
    pub live_after_step: u64,
    /// The highest sum in the forward pass.
    pub peak_in_forward: u64,
    /// The highest sum in the backward pass.
    pub peak_in_backward: u64,
    /// The highest sum in the optimizer's step after it.
    pub peak_in_step: u64,
}

/// The stage of a step that holds the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step after it.
    Step,
}

/// The peak, item by item: `peak = parameters + optimizer_state + held + temporaries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Items {
    /// P, computed: 4 bytes for each element of the model. As many as all gradients.
    pub parameters: u64,
    /// O, measured.
    pub optimizer_state: u64,
    /// The largest gradient, computed.
    pub largest_gradient: u64,
    /// A, measured: what the forward pass leaves alive, its batch included.
    pub activations: u64,
    /// G, measured: what the backward pass leaves alive.
    pub gradients: u64,
    /// The stage of the peak.
    pub peak_in: Phase,
    /// What that stage begins or ends with beyond P and O, whichever is more: in the backward pass
    /// A or G, in the forward pass A, in the step G.
    pub held: u64,
    /// The rest of the peak: temporaries of that stage. With gradient release they include the one
    /// gradient that is being stepped.
    pub temporaries: i64,
}

impl Items {
    fn new(measured: &Measured, bytes: Bytes) -> Self {
        let beyond = |live: u64| live.saturating_sub(bytes.live_before);
        let parameters = 4 * measured.parameters;
        let activations = beyond(bytes.live_after_forward);
        let gradients = beyond(bytes.live_after_backward);
        let both = activations.max(gradients);
        let (_, peak_in, held) = [
            (bytes.peak_in_step, Phase::Step, gradients),
            (bytes.peak_in_backward, Phase::Backward, both),
            (bytes.peak_in_forward, Phase::Forward, activations),
        ]
        .into_iter()
        .max_by_key(|(peak, ..)| *peak) // Of equals, the earliest stage: it comes last.
        .unwrap_or((0, Phase::Backward, 0));
        let explained = parameters + bytes.optimizer_state_bytes + held;
        Self {
            parameters,
            optimizer_state: bytes.optimizer_state_bytes,
            largest_gradient: 4 * measured.largest_parameter,
            activations,
            gradients,
            peak_in,
            held,
            temporaries: bytes.peak_bytes as i64 - explained as i64,
        }
    }

    /// The least that gradient release can need: parameters, state, activations, and the largest
    /// gradient.
    pub fn floor(&self) -> u64 {
        self.parameters + self.optimizer_state + self.activations + self.largest_gradient
    }
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_add_up_to_the_peak() {
        let bytes = Bytes {
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
        };
        let measured = Measured {
            backend: "a backend".into(),
            parameters: 25,
            largest_parameter: 10,
            step_seconds: vec![1.0],
            final_loss: 1.0,
            weights_digest: "00".into(),
            memory: Some(bytes),
            pools: Vec::new(),
        };
        let items = Items::new(&measured, bytes);
        assert_eq!((items.parameters, items.optimizer_state), (100, 200));
        assert_eq!((items.activations, items.gradients), (40, 100));
        assert_eq!((items.peak_in, items.held), (Phase::Step, 100));
        assert_eq!(items.temporaries, 60);
        assert_eq!(items.floor(), 100 + 200 + 40 + 40);

        let released = Bytes {
            peak_bytes: 380,
            live_after_backward: 300,
            peak_in_backward: 380,
            peak_in_step: 300,
            ..bytes
        };
        let items = Items::new(&measured, released);
        assert_eq!((items.peak_in, items.held), (Phase::Backward, 40));
        assert_eq!((items.gradients, items.temporaries), (0, 40));
    }

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}

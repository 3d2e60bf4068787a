//! What a process measured, and the items of its peak.

use burn_gradient_release::Recomputed;
use serde::{Deserialize, Serialize};

/// What a process measured, in Rust or in Python.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the backend.
    pub backend: String,
    /// Numbers in the model.
    pub parameters: u64,
    /// Numbers in its largest parameter.
    pub largest_parameter: u64,
    /// Seconds of each measured step, from the batch on the host to after the optimizer.
    pub step_seconds: Vec<f64>,
    /// Loss of the last measured step, before its update.
    pub final_loss: f64,
    /// SHA-256 of the weights after the last measured step.
    pub weights_digest: String,
    /// Bytes, if the process counted them.
    pub memory: Option<Bytes>,
    /// What the last measured step computed again, with gradient release.
    #[serde(default)]
    pub recomputed: Option<Recomputation>,
}

/// What the backward pass of a step computed again, from the step report of gradient release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recomputation {
    /// Segments of the forward pass.
    pub segments: usize,
    /// Operations in them.
    pub operations: usize,
    /// Bytes that were kept from the forward pass for that, parameters not counted.
    pub kept_bytes: u64,
    /// Estimate of the bytes of activations at the worst moment, with automatic checkpointing.
    pub planned_bytes: Option<u64>,
}

impl From<Recomputed> for Recomputation {
    fn from(report: Recomputed) -> Self {
        Self {
            segments: report.segments,
            operations: report.operations,
            kept_bytes: report.kept_bytes,
            planned_bytes: report.planned_bytes,
        }
    }
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

/// The phase of a step that holds the peak.
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
    /// The phase of the peak.
    pub peak_in: Phase,
    /// What that phase begins or ends with beyond P and O, whichever is more: in the backward pass
    /// A or G, in the forward pass A, in the step G.
    pub held: u64,
    /// The rest of the peak: temporaries of that phase. With gradient release they include the one
    /// gradient that is being stepped.
    pub temporaries: i64,
    /// Bytes reserved from the device beyond those in use, at their peaks.
    pub fragmentation: Option<u64>,
}

impl Items {
    pub(super) fn new(measured: &Measured, bytes: Bytes) -> Self {
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

    /// The least that gradient release can need: parameters, state, activations, and the largest
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
            recomputed: None,
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

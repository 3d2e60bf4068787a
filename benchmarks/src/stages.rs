//! The stages of a step that is measured, and the bytes alive at the end of each.

use crate::results::Bytes;
use vit_0_21::memory::{Memory, Peak};

/// Time and loss of a step.
#[derive(Default)]
pub(crate) struct StepResult {
    /// From the batch on the host to after the optimizer.
    pub(crate) seconds: f64,
    /// Before the update.
    pub(crate) loss: f64,
}

/// A stage of a step.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// Nothing of the step has run.
    Before,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step after it.
    Step,
}

/// Is called at the end of each stage of a step.
pub(crate) trait StageObserver {
    /// The stage is over.
    fn ends(&mut self, stage: Stage);
}

/// Observes nothing: the step runs as users write it.
impl StageObserver for () {
    fn ends(&mut self, _stage: Stage) {}
}

#[derive(Clone, Copy, Default)]
struct StageBytes {
    live: u64,
    peak: u64,
}

/// Counts the bytes alive at the end of each stage, and its peak.
pub(crate) struct Stages<'a> {
    memory: &'a Memory,
    bytes: [StageBytes; 4],
}

impl<'a> Stages<'a> {
    /// Before the step.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            bytes: Default::default(),
        }
    }

    /// The bytes of the run: of its measured steps, of those to warm up, of the optimizer's state,
    /// and of the step that was observed.
    pub(crate) fn bytes(self, peak: Peak, warm_up_peak: u64, optimizer_state: u64) -> Bytes {
        let [before, forward, backward, step] = self.bytes;
        Bytes {
            peak_bytes: peak.in_use,
            peak_reserved_bytes: peak.reserved,
            warm_up_peak_bytes: warm_up_peak,
            optimizer_state_bytes: optimizer_state,
            live_before: before.live,
            live_after_forward: forward.live,
            live_after_backward: backward.live,
            live_after_step: step.live,
            peak_in_forward: forward.peak,
            peak_in_backward: backward.peak,
            peak_in_step: step.peak,
        }
    }
}

impl StageObserver for Stages<'_> {
    fn ends(&mut self, stage: Stage) {
        // `in_use` also waits for the operations that are queued.
        let live = self.memory.in_use();
        self.bytes[stage as usize] = StageBytes {
            live,
            peak: self.memory.peak().in_use,
        };
        self.memory.reset_peak();
    }
}

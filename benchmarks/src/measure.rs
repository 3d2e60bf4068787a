//! Measures a training, inside its process: the steps, their peak, and one more step by its stages.

use crate::results::{Bytes, Measured, Pool, Settings};
use crate::subject::{Case, Subject};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use vit_0_21::memory::{Memory, Peak};

/// What a measuring process is asked to do: JSON on its command line, for Rust and for Python.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Model and batch size.
    pub case: Case,
    /// Framework and mode.
    pub subject: Subject,
    /// What the process measures.
    pub measure: Purpose,
    /// The settings that all runs share.
    pub settings: Settings,
}

/// What a process measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Bytes, and seconds where counting takes no time.
    Memory,
    /// Seconds.
    Time,
}

/// A stage of a step.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Nothing of the step has run.
    Before,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step after it.
    Step,
}

/// Counts the memory that holds the tensors of a run. Its methods are for the thread that trains.
pub trait Counter {
    /// Bytes in use now, when the operations that are queued have run.
    fn in_use(&self) -> u64;

    /// The peak since the start, or since the last reset.
    fn peak(&self) -> Peak;

    /// Resets the peak to the bytes in use now.
    fn reset_peak(&self);

    /// The pools of a GPU at that peak.
    fn pools(&self) -> Vec<Pool> {
        Vec::new()
    }
}

impl Counter for Memory {
    fn in_use(&self) -> u64 {
        self.in_use()
    }

    fn peak(&self) -> Peak {
        self.peak()
    }

    fn reset_peak(&self) {
        self.reset_peak();
    }
}

/// A training on either version of Burn.
pub trait Training {
    /// One step as users write it: its seconds, and the loss before the update. Each stage is
    /// reported at its end.
    fn step(&mut self, ends: &mut dyn FnMut(Stage)) -> Result<(f64, f64)>;

    /// SHA-256 of the weights.
    fn weights_digest(&self) -> Result<String>;

    /// From now on drops every gradient as soon as it exists, while the optimizer's state stays. For
    /// the floor only.
    fn discard_gradients(&mut self) -> Result<()>;

    /// Drops the optimizer with its state.
    fn drop_optimizer(&mut self);
}

/// Measures a training whose model was built, with so many parameters, on this backend.
pub fn measure(
    spec: &Spec,
    memory: Option<&dyn Counter>,
    backend: String,
    parameters: usize,
    mut training: impl Training,
) -> Result<Measured> {
    let largest_parameter = spec.case.model.largest_param() as u64;
    for _ in 0..spec.settings.warm_up.get() {
        training.step(&mut |_| {})?;
    }
    let warm_up_peak = memory.map(Counter::peak);
    if let Some(memory) = memory {
        memory.reset_peak();
    }
    let mut final_loss = 0.0;
    let mut step_seconds = Vec::new();
    for _ in 0..spec.settings.steps.get() {
        let (seconds, loss) = training.step(&mut |_| {})?;
        step_seconds.push(seconds);
        final_loss = loss;
    }
    // Before the digest, which has the weights on the heap.
    let mut peak = memory.map(Counter::peak);
    let pools = memory.map(Counter::pools).unwrap_or_default();
    let weights_digest = training.weights_digest()?;
    if let (Some(memory), Some(peak), true) = (memory, &mut peak, spec.subject.is_floor()) {
        training.discard_gradients()?;
        // In the first step automatic checkpointing learns what to recompute.
        training.step(&mut |_| {})?;
        memory.reset_peak();
        training.step(&mut |_| {})?;
        *peak = memory.peak();
        peak.in_use += 4 * largest_parameter;
    }

    let mut bytes = None;
    if let (Some(memory), Some(peak), Some(warm_up_peak)) = (memory, peak, warm_up_peak) {
        // Bytes at the end of each stage, and its peak.
        let mut stages = [(0, 0); 4];
        training.step(&mut |stage| {
            // `in_use` also waits for the operations that are queued.
            let live = memory.in_use();
            stages[stage as usize] = (live, memory.peak().in_use);
            memory.reset_peak();
        })?;
        let kept = memory.in_use();
        training.drop_optimizer();
        let [before, forward, backward, step] = stages;
        bytes = Some(Bytes {
            peak_bytes: peak.in_use,
            peak_reserved_bytes: peak.reserved,
            warm_up_peak_bytes: warm_up_peak.in_use,
            optimizer_state_bytes: kept - memory.in_use(),
            live_before: before.0,
            live_after_forward: forward.0,
            live_after_backward: backward.0,
            live_after_step: step.0,
            peak_in_forward: forward.1,
            peak_in_backward: backward.1,
            peak_in_step: step.1,
        });
    }
    Ok(Measured {
        backend,
        parameters: parameters as u64,
        largest_parameter,
        step_seconds,
        final_loss,
        weights_digest,
        memory: bytes,
        pools,
    })
}

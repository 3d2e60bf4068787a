//! The phases of a training: the passes, the optimizer's call, and the step of each parameter.

use super::block::BlockId;
use crate::snapshot::{Phase, PhaseKind};

/// A forward or backward pass in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Index of its phase.
    phase: usize,
    pub(super) kind: PhaseKind,
    /// Number of blocks made before it.
    pub(super) blocks_before: usize,
}

/// The step of a parameter in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Index of its phase.
    phase: usize,
    pub(super) parameter: usize,
    pub(super) old_weight: BlockId,
    pub(super) gradient: BlockId,
    /// Number of blocks made before it.
    pub(super) blocks_before: usize,
}

#[derive(Debug, Default)]
pub(super) struct Phases {
    pub(super) phases: Vec<Phase>,
    pass: Option<Pass>,
    /// Index of the phase of the optimizer's call, from its first step to the next pass.
    optimizer: Option<usize>,
    step: Option<Step>,
    /// Number of training steps begun.
    iterations: usize,
}

impl Phases {
    /// The step of a parameter in progress.
    pub(super) fn step(&self) -> Option<Step> {
        self.step
    }

    /// Whether a pass or the step of a parameter is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        self.pass.is_some() || self.step.is_some()
    }

    /// Whether a parameter was stepped.
    pub(super) fn has_steps(&self) -> bool {
        let is_step = |phase: &Phase| matches!(phase.kind, PhaseKind::Step(_));
        self.phases.iter().any(is_step)
    }

    pub(super) fn begin_pass(&mut self, kind: PhaseKind, tick: usize, blocks_before: usize) {
        if kind == PhaseKind::Forward {
            self.iterations += 1;
        }
        self.optimizer = None;
        self.pass = Some(Pass {
            phase: self.begin(kind, tick),
            kind,
            blocks_before,
        });
    }

    /// Takes the pass in progress. The caller then gives it to [`end_pass`](Self::end_pass).
    pub(super) fn take_pass(&mut self) -> Option<Pass> {
        self.pass.take()
    }

    pub(super) fn end_pass(&mut self, pass: Pass, until: usize) {
        self.phases[pass.phase].until = until;
    }

    pub(super) fn begin_step(
        &mut self,
        parameter: usize,
        old_weight: BlockId,
        gradient: BlockId,
        tick: usize,
        blocks_before: usize,
    ) {
        if self.pass.is_none() && self.optimizer.is_none() {
            self.optimizer = Some(self.begin(PhaseKind::Optimizer, tick));
        }
        self.step = Some(Step {
            phase: self.begin(PhaseKind::Step(parameter), tick),
            parameter,
            old_weight,
            gradient,
            blocks_before,
        });
    }

    /// Takes the step in progress. The caller then gives it to [`end_step`](Self::end_step).
    pub(super) fn take_step(&mut self) -> Option<Step> {
        self.step.take()
    }

    pub(super) fn end_step(&mut self, step: Step, until: usize) {
        self.phases[step.phase].until = until;
        if let Some(optimizer) = self.optimizer {
            self.phases[optimizer].until = until;
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.phases.capacity() * size_of::<Phase>()
    }

    fn begin(&mut self, kind: PhaseKind, from: usize) -> usize {
        self.phases.push(Phase {
            kind,
            iteration: self.iterations.saturating_sub(1),
            from,
            until: from + 1,
        });
        self.phases.len() - 1
    }
}

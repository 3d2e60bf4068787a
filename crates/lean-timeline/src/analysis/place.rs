//! The place of a tick in the training.

use crate::snapshot::{PhaseKind, Snapshot};

/// The phase of the training at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the training step in the recording, from 0.
    pub iteration: usize,
    /// Forward, backward or optimizer; a step, if it is in none of these.
    pub phase: PhaseKind,
    /// The parameter that is stepped, an index into [`Snapshot::parameters`].
    pub step: Option<usize>,
}

impl Place {
    /// The place of a tick; `None` between phases.
    pub fn of(snapshot: &Snapshot, tick: usize) -> Option<Self> {
        let mut around = snapshot
            .phases
            .iter()
            .filter(|phase| phase.from <= tick && tick < phase.until);
        let outermost = around.next()?;
        let innermost = around.next_back().unwrap_or(outermost);
        Some(Self {
            iteration: innermost.iteration,
            phase: outermost.kind,
            step: match innermost.kind {
                PhaseKind::Step(parameter) => Some(parameter),
                _ => None,
            },
        })
    }

    /// `backward of step 2, stepping blocks.3.mlp.fc1.weight`, with training steps counted from 1.
    pub fn name(self, snapshot: &Snapshot) -> String {
        let phase = match self.phase {
            PhaseKind::Forward => "forward",
            PhaseKind::Backward => "backward",
            PhaseKind::Optimizer => "optimizer",
            PhaseKind::Step(_) => "step of a parameter",
        };
        let place = format!("{phase} of step {}", self.iteration + 1);
        match self.step.map(|step| &snapshot.parameters[step].path) {
            Some(path) => format!("{place}, stepping {path}"),
            None => place,
        }
    }
}

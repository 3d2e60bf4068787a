//! The place of a tick in the training.

use crate::snapshot::{PhaseKind, Snapshot};
use std::fmt::{self, Display};

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
    pub fn name(self, snapshot: &Snapshot) -> impl Display {
        let path = |parameter: usize| snapshot.parameters[parameter].path.clone();
        Name {
            place: self,
            path: self.step.map(path),
        }
    }
}

struct Name {
    place: Place,
    path: Option<String>,
}

impl Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.place.phase {
            PhaseKind::Forward => "forward",
            PhaseKind::Backward => "backward",
            PhaseKind::Optimizer => "optimizer",
            PhaseKind::Step(_) => "step of a parameter",
        };
        write!(to, "{phase} of step {}", self.place.iteration + 1)?;
        match &self.path {
            Some(path) => write!(to, ", stepping {path}"),
            None => Ok(()),
        }
    }
}

//! The peak that a recording of plain Burn would have with gradient release.
//!
//! [`Estimate::of`] replays the last complete training step without its optimizer phase. It moves
//! the step of each parameter into the backward pass, to the tick at which the parameter's gradient
//! is complete: where the holder begins with which the optimizer steps. There the memory rises and
//! falls as in the recorded step, workspaces included, and the gradient is released.
//!
//! The operation that computes a gradient releases its operands at about the same time. A recording
//! cannot tell these releases from the next ones. Hence two bounds: one with the step before all
//! releases that follow the gradient, one with the step after them.
//!
//! Everything else stays as recorded. The estimate assumes that a gradient's memory is used by nothing
//! but its step once it is complete, and the old weight by nothing once its step ends.

mod replay;
mod states;

use super::{peak::Peak, totals::Totals};
use crate::snapshot::{Phase, PhaseKind, Snapshot};
use replay::{Replay, Step, releases, steps};
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

pub use states::StatesEstimate;

/// The estimated peak of a training step with gradient release, from a recording without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Index of the training step, from 0.
    pub iteration: usize,
    /// The recorded peak of that step.
    pub recorded: u64,
    /// Lower bound of its peak with gradient release.
    pub least: u64,
    /// Upper bound of its peak with gradient release.
    pub most: u64,
}

/// Why there is no [`Estimate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoEstimate {
    /// A parameter is stepped within a backward pass.
    #[error("this is a recording of gradient release already")]
    IsReleased,
    /// No training step has a forward pass, a backward pass and an optimizer phase that steps a
    /// parameter.
    #[error("no training step was recorded from its forward pass to the end of its optimizer")]
    NoCompleteStep,
    /// A training step has more than one backward pass, or comes after one that was skipped.
    #[error(
        "a training step has {0} backward passes or more. If their gradients add up, what gradient release \
         makes of them is not estimated; if a step was skipped or not recorded, record others"
    )]
    Accumulates(usize),
    /// The gradients of the steps are made after the backward pass.
    #[error(
        "the optimizer steps with other gradients than backward has made, as with clipping: what \
         gradient release makes of these is not estimated"
    )]
    ChangedGradients,
}

impl Estimate {
    /// Replays the last complete training step.
    ///
    /// # Errors
    ///
    /// The recording is of gradient release already, or has no complete training step.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Result<Self, NoEstimate> {
        let Complete {
            iteration,
            phases,
            ticks,
            backward,
            optimizer,
        } = Complete::last(snapshot)?;
        let steps = steps(snapshot, &phases, &backward)?;
        let [least, most] = bounds(snapshot, steps, |steps| {
            Replay::new(snapshot, totals, steps, ticks.start..optimizer)
        });
        let recorded = Peak::within(snapshot, totals, ticks.start, ticks.end);
        Ok(Self {
            iteration,
            recorded: recorded.map_or(0, |peak| peak.bytes),
            least,
            most,
        })
    }
}

/// A training step from its forward pass to the end of its optimizer.
struct Complete {
    /// Index of the training step, from 0.
    iteration: usize,
    phases: Vec<Phase>,
    ticks: Range<usize>,
    backward: Range<usize>,
    /// The first tick of the optimizer phase.
    optimizer: usize,
}

impl Complete {
    fn last(snapshot: &Snapshot) -> Result<Self, NoEstimate> {
        let (iteration, phases) = last_complete(snapshot)?;
        let first = |kind: PhaseKind| {
            let phase = phases.iter().find(|phase| phase.kind == kind);
            *phase.expect("a complete step has one")
        };
        let (backward, optimizer) = (first(PhaseKind::Backward), first(PhaseKind::Optimizer));
        let from = phases.iter().map(|phase| phase.from).min();
        let until = phases.iter().map(|phase| phase.until).max();
        Ok(Self {
            iteration,
            ticks: from.unwrap_or(0)..until.unwrap_or(0),
            backward: backward.from..backward.until,
            optimizer: optimizer.from,
            phases,
        })
    }
}

/// The peaks with the steps after the releases that follow their gradients, and before these.
fn bounds<'a>(
    snapshot: &Snapshot,
    mut steps: Vec<Step>,
    replay: impl Fn(&[Step]) -> Replay<'a>,
) -> [u64; 2] {
    let most = replay(&steps).peak(&steps);
    let releases = releases(snapshot);
    for step in &mut steps {
        let following = releases[step.at + 1..].iter();
        step.at += following.take_while(|releases| **releases).count();
    }
    [replay(&steps).peak(&steps), most]
}

/// The last of the training steps in which the most parameters are stepped, with its phases.
fn last_complete(snapshot: &Snapshot) -> Result<(usize, Vec<Phase>), NoEstimate> {
    let mut iterations: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
    for phase in snapshot
        .phases
        .iter()
        .filter(|phase| phase.from < phase.until)
    {
        iterations.entry(phase.iteration).or_default().push(*phase);
    }
    let is_step = |phase: &Phase| matches!(phase.kind, PhaseKind::Step(_));
    let backwards = |phases: &[Phase]| -> Vec<Phase> {
        let is_backward = |phase: &&Phase| phase.kind == PhaseKind::Backward;
        phases.iter().filter(is_backward).copied().collect()
    };
    let is_released = iterations.values().any(|phases| {
        let backwards = backwards(phases);
        let within = |step: &Phase| {
            let holds = |phase: &Phase| phase.from <= step.from && step.until <= phase.until;
            backwards.iter().any(holds)
        };
        phases.iter().any(|phase| is_step(phase) && within(phase))
    });
    if is_released {
        return Err(NoEstimate::IsReleased);
    }
    let has = |phases: &[Phase], kind| phases.iter().any(|phase| phase.kind == kind);
    let is_stepped = |phases: &Vec<Phase>| has(phases, PhaseKind::Optimizer);
    let trained = iterations.values();
    let trained = trained.filter(|phases| has(phases, PhaseKind::Backward));
    let trained: Vec<bool> = trained.map(is_stepped).collect();
    // Micro-batches, each with a forward pass: those in a row that end with a step.
    if let Some(last) = trained.iter().rposition(|is_stepped| *is_stepped) {
        let rows = trained[..last].split(|is_stepped| *is_stepped);
        let before = rows.map(<[bool]>::len).max().unwrap_or_default();
        // One alone may be a step that was skipped, or that the recording does not reach.
        let after = Some(trained.len() - last - 1).filter(|unstepped| *unstepped > 1);
        let unstepped = before.max(after.unwrap_or_default());
        if unstepped > 0 {
            return Err(NoEstimate::Accumulates(unstepped + 1));
        }
    }
    let complete = iterations.into_iter().filter(|(_, phases)| {
        has(phases, PhaseKind::Forward)
            && has(phases, PhaseKind::Backward)
            && has(phases, PhaseKind::Optimizer)
            && phases.iter().any(is_step)
    });
    let (iteration, phases) = complete
        .max_by_key(|(iteration, phases)| {
            (
                phases.iter().filter(|phase| is_step(phase)).count(),
                *iteration,
            )
        })
        .ok_or(NoEstimate::NoCompleteStep)?;
    match backwards(&phases).len() {
        1 => Ok((iteration, phases)),
        count => Err(NoEstimate::Accumulates(count)),
    }
}

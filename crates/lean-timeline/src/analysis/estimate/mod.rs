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
//! Everything else stays as recorded. [`Estimate::assumptions`] lists what the estimate assumes.

mod replay;
mod states;

use super::{peak::Peak, place::Place, totals::Totals};
use crate::snapshot::{Category, Phase, PhaseKind, Snapshot};
use replay::{Replay, Step, releases, steps};
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

pub use states::StatesEstimate;

/// The estimated peak of a training step with gradient release, from a recording without it.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Index of the training step, from 0.
    pub iteration: usize,
    /// The recorded peak of that step.
    pub recorded: u64,
    /// Lower bound of its peak with gradient release.
    pub least: u64,
    /// Upper bound of its peak with gradient release.
    pub most: u64,
    /// The place of the peak of [`most`](Self::most).
    pub place: Option<Place>,
    /// Bytes of the gradients that would be released as soon as they are complete.
    pub released: u64,
    /// Bytes of the gradients that no step used, and that stay as recorded.
    pub kept: u64,
    /// Bytes of the gradients that were still held after the optimizer had stepped with them.
    pub held_on: u64,
    /// Bytes by which the optimizer's state grew in that step.
    pub born: u64,
    /// The most bytes that the optimizer phase took outside the steps of parameters.
    pub outside: u64,
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
    /// A training step has more than one backward pass.
    #[error(
        "the training step has {0} backward passes, whose gradients add up: what gradient release \
         makes of accumulated gradients is not estimated"
    )]
    Accumulates(usize),
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
        let mut steps = steps(snapshot, &phases, backward);
        let replay = Replay::new(snapshot, totals, &steps, ticks.start..optimizer);
        let (most, tick, step) = replay.peak(&steps);
        after_releases(snapshot, &mut steps);
        let replay = Replay::new(snapshot, totals, &steps, ticks.start..optimizer);
        let (least, ..) = replay.peak(&steps);
        let released = steps.iter().map(|step| step.gradient).sum();
        let gradients = snapshot.holders.iter().filter(|holder| {
            holder.category == Category::Gradients
                && holder.from <= optimizer
                && optimizer < holder.until
        });
        let gradients: u64 = gradients.map(|holder| holder.bytes).sum();
        let recorded = Peak::within(snapshot, totals, ticks.start, ticks.end);
        let place = Place::of(snapshot, tick);
        let state = totals.layer(Category::OptimizerState);
        Ok(Self {
            iteration,
            recorded: recorded.map_or(0, |peak| peak.bytes),
            least,
            most,
            place: place.map(|place| Place { step, ..place }),
            released,
            kept: gradients.saturating_sub(released),
            held_on: steps.iter().map(|step| step.held_on).sum(),
            born: state[ticks.end - 1].saturating_sub(state[ticks.start]),
            outside: outside(totals, &phases),
        })
    }

    /// What the estimate assumes, in sentences, without the assumptions that make no difference
    /// here.
    pub fn assumptions(&self) -> Vec<String> {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let mut all = vec![
            "a gradient's memory is used by nothing but its step once it is complete, and the old \
             weight by nothing once its step ends"
                .to_string(),
        ];
        if self.born > 0 {
            all.push(format!(
                "the optimizer's state grows by {} in this step, the first: later ones begin with \
                 it, so record two steps or more",
                mib(self.born)
            ));
        }
        if self.outside > 0 {
            all.push(format!(
                "what the optimizer takes outside the step of any parameter ({} at most) falls \
                 away; clipping by the norm of all gradients at once would need them all",
                mib(self.outside)
            ));
        }
        if self.kept > 0 {
            all.push(format!(
                "gradients of {} that no step took stay as recorded",
                mib(self.kept)
            ));
        }
        if self.held_on > 0 {
            all.push(format!(
                "gradients of {} that were still held after their step are released",
                mib(self.held_on)
            ));
        }
        all
    }
}

/// A training step from its forward pass to the end of its optimizer.
struct Complete {
    /// Index of the training step, from 0.
    iteration: usize,
    phases: Vec<Phase>,
    ticks: Range<usize>,
    /// The first tick of the backward pass.
    backward: usize,
    /// The first tick of the optimizer phase.
    optimizer: usize,
}

impl Complete {
    fn last(snapshot: &Snapshot) -> Result<Self, NoEstimate> {
        let (iteration, phases) = last_complete(snapshot)?;
        let begin = |kind: PhaseKind| {
            let of_kind = phases.iter().filter(|phase| phase.kind == kind);
            let begin = of_kind.map(|phase| phase.from).min();
            begin.expect("a complete step has one")
        };
        let from = phases.iter().map(|phase| phase.from).min();
        let until = phases.iter().map(|phase| phase.until).max();
        Ok(Self {
            iteration,
            ticks: from.unwrap_or(0)..until.unwrap_or(0),
            backward: begin(PhaseKind::Backward),
            optimizer: begin(PhaseKind::Optimizer),
            phases,
        })
    }
}

/// Moves the steps after the releases that follow their gradients.
fn after_releases(snapshot: &Snapshot, steps: &mut [Step]) {
    let releases = releases(snapshot);
    for step in steps {
        let following = releases[step.at + 1..].iter();
        step.at += following.take_while(|releases| **releases).count();
    }
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

/// The most bytes that the optimizer phases take outside the steps of parameters.
fn outside(totals: &Totals, phases: &[Phase]) -> u64 {
    let known = totals.known();
    let mut most = 0;
    for optimizer in phases {
        if optimizer.kind != PhaseKind::Optimizer {
            continue;
        }
        // What is allocated in each range between steps, relative to its beginning.
        let steps = phases.iter().filter(|phase| {
            matches!(phase.kind, PhaseKind::Step(_))
                && optimizer.from <= phase.from
                && phase.until <= optimizer.until
        });
        let ends = steps.clone().map(|step| step.from).chain([optimizer.until]);
        let begins = [optimizer.from]
            .into_iter()
            .chain(steps.map(|step| step.until));
        for (begin, end) in begins.zip(ends) {
            let before = known[begin.saturating_sub(1)];
            let stretch = known.get(begin..end).unwrap_or_default();
            let highest = stretch.iter().copied().max().unwrap_or(0);
            most = most.max(highest.saturating_sub(before));
        }
    }
    most
}

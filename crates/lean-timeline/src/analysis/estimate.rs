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

use super::{
    moment::{Moment, moments},
    peak::Peak,
    place::Place,
    totals::Totals,
};
use crate::snapshot::{Category, Phase, PhaseKind, Snapshot};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use thiserror::Error;

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

/// The recorded step of one parameter.
struct Step {
    parameter: usize,
    ticks: Range<usize>,
    /// Bytes of its gradient.
    gradient: u64,
    /// Bytes of its gradient that are still held when the step ends.
    held_on: u64,
    /// Bytes of the weight before the step that are still held when it ends.
    old_weight: u64,
    /// Bytes of the weight that the step makes.
    new_weight: u64,
    /// The tick after which it takes place in the replay.
    at: usize,
}

/// The change of the memory in a step, relative to before it.
struct Change {
    /// At its highest.
    most: i64,
    /// At its end.
    end: i64,
}

impl Estimate {
    /// Replays the last complete training step.
    ///
    /// # Errors
    ///
    /// The recording is of gradient release already, or has no complete training step.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Result<Self, NoEstimate> {
        let (iteration, phases) = last_complete(snapshot)?;
        let from = phases.iter().map(|phase| phase.from).min();
        let until = phases.iter().map(|phase| phase.until).max();
        let ticks = from.unwrap_or(0)..until.unwrap_or(0);
        let backward = phases
            .iter()
            .find(|phase| phase.kind == PhaseKind::Backward)
            .expect("a complete step has one");
        let of_kind = |kind: PhaseKind| phases.iter().filter(move |phase| phase.kind == kind);
        let optimizer = of_kind(PhaseKind::Optimizer).map(|phase| phase.from).min();
        let optimizer = optimizer.expect("a complete step has one");

        let mut steps = steps(snapshot, &phases, backward.from);
        let replay = Replay::new(snapshot, totals, &steps, ticks.start..optimizer);
        let (most, tick, step) = replay.peak(&steps);
        let releases = releases(snapshot);
        for step in &mut steps {
            let following = releases[step.at + 1..].iter();
            step.at += following.take_while(|releases| **releases).count();
        }
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

/// The steps of the parameters whose gradients were complete after tick `since`, in that order.
fn steps(snapshot: &Snapshot, phases: &[Phase], since: usize) -> Vec<Step> {
    let mut by_parameter: HashMap<usize, Step> = HashMap::new();
    for phase in phases {
        if let PhaseKind::Step(parameter) = phase.kind {
            // The first of several.
            by_parameter.entry(parameter).or_insert(Step {
                parameter,
                ticks: phase.from..phase.until,
                gradient: 0,
                held_on: 0,
                old_weight: 0,
                new_weight: 0,
                at: 0,
            });
        }
    }
    for holder in &snapshot.holders {
        let Some(step) = holder.parameter.and_then(|of| by_parameter.get_mut(&of)) else {
            continue;
        };
        let is_held = holder.until >= step.ticks.end;
        match holder.category {
            Category::Gradients
                if (since..step.ticks.start).contains(&holder.from)
                    && step.ticks.start < holder.until =>
            {
                step.gradient += holder.bytes;
                step.at = step.at.max(holder.from);
                if is_held {
                    step.held_on += holder.bytes;
                }
            }
            Category::Parameters if is_held && holder.from < step.ticks.start => {
                step.old_weight += holder.bytes;
            }
            Category::Parameters if is_held && holder.from < step.ticks.end => {
                step.new_weight += holder.bytes;
            }
            _ => {}
        }
    }
    let with_gradient = by_parameter.into_values().filter(|step| step.gradient > 0);
    let mut steps: Vec<Step> = with_gradient.collect();
    steps.sort_by_key(|step| (step.at, Reverse(step.ticks.start)));
    steps
}

/// For each tick, whether memory was released and none was allocated.
fn releases(snapshot: &Snapshot) -> Vec<bool> {
    let mut releases = vec![false; snapshot.times.len()];
    for holder in &snapshot.holders {
        if let Some(end) = releases.get_mut(holder.until) {
            *end = true;
        }
    }
    for holder in &snapshot.holders {
        releases[holder.from] = false;
    }
    releases
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

/// The ticks from the forward pass to the optimizer phase, with the steps moved into them.
struct Replay<'a> {
    known: &'a [u64],
    ticks: Range<usize>,
    moments: Vec<Moment>,
    changes: HashMap<usize, Change>,
    /// For each of `ticks`, the sum of the changes by all steps before it, and by those at it too.
    before: Vec<i64>,
    after: Vec<i64>,
}

impl<'a> Replay<'a> {
    fn new(
        snapshot: &'a Snapshot,
        totals: &'a Totals,
        steps: &[Step],
        ticks: Range<usize>,
    ) -> Self {
        let known = totals.known();
        let moments: Vec<Moment> = moments(snapshot, totals).collect();
        let changes = steps.iter().map(|step| {
            let change = Change::of(known, &moments, step);
            (step.parameter, change)
        });
        let changes: HashMap<usize, Change> = changes.collect();
        let mut at_ticks = vec![0; ticks.len()];
        for step in steps {
            if let Some(change) = at_ticks.get_mut(step.at - ticks.start) {
                *change += changes[&step.parameter].end;
            }
        }
        let mut before = Vec::with_capacity(ticks.len());
        let mut after = Vec::with_capacity(ticks.len());
        let mut sum = 0;
        for change in at_ticks {
            before.push(sum);
            sum += change;
            after.push(sum);
        }
        Self {
            known,
            ticks,
            moments,
            changes,
            before,
            after,
        }
    }

    /// The peak, its tick, and the parameter that is stepped there.
    fn peak(&self, steps: &[Step]) -> (u64, usize, Option<usize>) {
        let mut peak = (0, self.ticks.start, None);
        let mut see = |bytes: i64, tick, step| {
            if bytes > peak.0 {
                peak = (bytes, tick, step);
            }
        };
        let first = self.ticks.start;
        let before = |tick: usize| self.known[tick] as i64 + self.before[tick - first];
        let after = |tick: usize| self.known[tick] as i64 + self.after[tick - first];
        for tick in self.ticks.clone() {
            see(before(tick), tick, None);
        }
        let last = self.ticks.end.saturating_sub(1);
        for moment in &self.moments {
            if !self.ticks.contains(&moment.tick) {
                continue;
            }
            // The bytes when the operations of this sample began, and after each of their ticks.
            let since = moment.since.max(first);
            let mut most = (after(since), since);
            for tick in since + 1..=moment.sample.tick.min(last) {
                most = most.max((before(tick), tick));
            }
            see(most.0 + moment.workspace as i64, most.1, None);
        }
        // Several gradients can be complete at the same tick. Their steps follow each other.
        let mut base = (usize::MAX, 0);
        for step in steps {
            if !self.ticks.contains(&step.at) {
                continue;
            }
            if base.0 != step.at {
                base = (step.at, before(step.at));
            }
            let change = &self.changes[&step.parameter];
            see(base.1 + change.most, step.at, Some(step.parameter));
            base.1 += change.end;
        }
        (peak.0.unsigned_abs(), peak.1, peak.2)
    }
}

impl Change {
    fn of(known: &[u64], moments: &[Moment], step: &Step) -> Self {
        let ticks = step.ticks.clone();
        let start = known[ticks.start.saturating_sub(1)] as i64;
        // A weight without a new one beside it is stepped in place.
        let replaced = step.old_weight.min(step.new_weight);
        let end = known[ticks.end - 1] as i64 - start - (step.held_on + replaced) as i64;
        let highest = ticks.clone().map(|tick| known[tick] as i64).max();
        let first = moments.partition_point(|moment| moment.sample.tick < ticks.start);
        let sampled = moments[first..]
            .iter()
            .take_while(|moment| moment.since < ticks.end)
            // Workspaces from before the step, or from after it, are not part of it.
            .filter(|moment| (ticks.start..=ticks.end).contains(&(moment.tick + 1)))
            .map(|moment| known[moment.tick] as i64 + moment.workspace as i64);
        let most = sampled.chain(highest).max().unwrap_or(start) - start;
        Self { most, end }
    }
}

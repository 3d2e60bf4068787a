//! The replay of a training step, with the steps of parameters moved into the backward pass.

use super::super::moment::{Moment, moments};
use super::super::totals::Totals;
use super::NoEstimate;
use crate::snapshot::{Category, Phase, PhaseKind, Snapshot};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

/// The recorded step of one parameter.
pub(super) struct Step {
    pub(super) parameter: usize,
    pub(super) ticks: Range<usize>,
    /// Bytes of its gradient.
    pub(super) gradient: u64,
    /// Bytes of its gradient that are still held when the step ends.
    pub(super) held_on: u64,
    /// Bytes of the weight before the step that are still held when it ends.
    pub(super) old_weight: u64,
    /// Bytes of the weight that the step makes.
    pub(super) new_weight: u64,
    /// The tick after which it takes place in the replay.
    pub(super) at: usize,
}

/// The change of the memory in a step, relative to before it.
pub(super) struct Change {
    /// At its highest.
    most: i64,
    /// At its end.
    end: i64,
}

/// The steps of the parameters, in the order in which `backward` has completed their gradients.
pub(super) fn steps(
    snapshot: &Snapshot,
    phases: &[Phase],
    backward: &Range<usize>,
) -> Result<Vec<Step>, NoEstimate> {
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
                if (backward.start..step.ticks.start).contains(&holder.from)
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
    match steps.last() {
        Some(last) if last.at >= backward.end => Err(NoEstimate::ChangedGradients),
        _ => Ok(steps),
    }
}

/// For each tick, whether memory was released and none was allocated.
pub(super) fn releases(snapshot: &Snapshot) -> Vec<bool> {
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

/// The ticks from the forward pass to the optimizer phase, with the steps moved into them.
pub(super) struct Replay<'a> {
    known: &'a [u64],
    ticks: Range<usize>,
    moments: Vec<Moment>,
    changes: HashMap<usize, Change>,
    /// The sums of the changes by all steps before each of `ticks`, and by all steps.
    sums: Vec<i64>,
}

impl<'a> Replay<'a> {
    /// The steps change the memory as recorded.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        totals: &'a Totals,
        steps: &[Step],
        ticks: Range<usize>,
    ) -> Self {
        let moments: Vec<Moment> = moments(snapshot, totals).collect();
        let change = |step: &Step| Change::of(totals.known(), &moments, step);
        let changes = steps.iter().map(|step| (step.parameter, change(step)));
        let changes = changes.collect();
        Self::with(totals, moments, changes, steps, ticks)
    }

    /// The steps take no memory, and release the gradients.
    pub(super) fn in_place(
        snapshot: &'a Snapshot,
        totals: &'a Totals,
        steps: &[Step],
        ticks: Range<usize>,
    ) -> Self {
        let change = |step: &Step| Change {
            most: 0,
            end: -(step.gradient as i64),
        };
        let changes = steps.iter().map(|step| (step.parameter, change(step)));
        let moments = moments(snapshot, totals).collect();
        Self::with(totals, moments, changes.collect(), steps, ticks)
    }

    fn with(
        totals: &'a Totals,
        moments: Vec<Moment>,
        changes: HashMap<usize, Change>,
        steps: &[Step],
        ticks: Range<usize>,
    ) -> Self {
        let mut sums = vec![0; ticks.len() + 1];
        for step in steps {
            if let Some(change) = sums.get_mut(step.at - ticks.start + 1) {
                *change += changes[&step.parameter].end;
            }
        }
        let mut sum = 0;
        for change in &mut sums {
            sum += *change;
            *change = sum;
        }
        Self {
            known: totals.known(),
            ticks,
            moments,
            changes,
            sums,
        }
    }

    pub(super) fn peak(&self, steps: &[Step]) -> u64 {
        let first = self.ticks.start;
        let last = self.ticks.end.saturating_sub(1);
        let before = |tick: usize| self.known[tick] as i64 + self.sums[tick - first];
        let after = |tick: usize| self.known[tick] as i64 + self.sums[tick - first + 1];
        let mut peak = self.ticks.clone().map(before).max().unwrap_or(0);
        for moment in &self.moments {
            if !self.ticks.contains(&moment.tick) {
                continue;
            }
            // The bytes when the operations of this sample began, and after each of their ticks.
            let since = moment.since.max(first);
            let ticks = since + 1..=moment.sample.tick.min(last);
            let most = ticks.map(before).fold(after(since), i64::max);
            peak = peak.max(most + moment.workspace as i64);
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
            peak = peak.max(base.1 + change.most);
            base.1 += change.end;
        }
        peak.unsigned_abs()
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

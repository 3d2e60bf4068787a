//! The replay of a training step without its optimizer phase, with the step of each parameter in the
//! backward pass, at the tick at which its gradient is complete: where the holder begins with which
//! the optimizer steps. There the memory rises and falls as in the recorded step, workspaces
//! included, and the gradient is released.
//!
//! The operation that computes a gradient releases its operands at about the same time, which may be
//! before the step or after it: here it is after, so that the estimate is an upper bound.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use super::choice::NoEstimate;
use super::totals::{Moment, Totals, moments};
use crate::snapshot::{Category, Phase, PhaseKind, Snapshot};

/// The recorded step of one parameter.
pub(super) struct Step {
    pub(super) parameter: usize,
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
    for held in &snapshot.holders {
        let Some(step) = held.parameter.and_then(|of| by_parameter.get_mut(&of)) else {
            continue;
        };
        let (start, end) = (step.ticks.start, step.ticks.end);
        let (bytes, is_held) = (held.bytes, held.until >= end);
        match held.category {
            Category::Gradients
                if (backward.start..start).contains(&held.from) && start < held.until =>
            {
                step.gradient += bytes;
                step.at = step.at.max(held.from);
                step.held_on += if is_held { bytes } else { 0 };
            }
            Category::Parameters if is_held && held.from < start => step.old_weight += bytes,
            Category::Parameters if is_held && held.from < end => step.new_weight += bytes,
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

/// How steps change the memory, relative to before each.
pub(super) struct Replay<'a> {
    known: &'a [u64],
    moments: Vec<Moment>,
    /// Tick, most and end of each step.
    changes: Vec<(usize, i64, i64)>,
}

impl<'a> Replay<'a> {
    /// The steps change the memory as recorded, or take nothing and release the gradients.
    pub(super) fn new(
        snapshot: &Snapshot,
        totals: &'a Totals,
        steps: &[Step],
        as_recorded: bool,
    ) -> Self {
        let known = totals.known();
        let moments: Vec<Moment> = moments(snapshot, totals).collect();
        let changes = steps.iter().map(|step| match as_recorded {
            true => change(known, &moments, step),
            false => (step.at, 0, -(step.gradient as i64)),
        });
        Self {
            changes: changes.collect(),
            known,
            moments,
        }
    }

    /// The peak from the forward pass to the optimizer.
    pub(super) fn peak(&self, ticks: Range<usize>) -> u64 {
        let first = ticks.start;
        // The sums of the changes by all steps before each tick, and by all steps.
        let mut sums = vec![0; ticks.len() + 1];
        let changes = self.changes.iter().filter(|of| ticks.contains(&of.0));
        for (at, _, end) in changes.clone() {
            sums[at - first + 1] += end;
        }
        let mut sum = 0;
        for change in &mut sums {
            sum += *change;
            *change = sum;
        }
        let before = |tick: usize| self.known[tick] as i64 + sums[tick - first];
        let after = |tick: usize| self.known[tick] as i64 + sums[tick - first + 1];
        let mut peak = ticks.clone().map(before).max().unwrap_or(0);
        for moment in self.moments.iter().filter(|of| ticks.contains(&of.tick)) {
            // The bytes when the operations of this sample began, and after each of their ticks.
            let since = moment.since.max(first);
            let until = (moment.sample.tick + 1).min(ticks.end);
            let most = (since + 1..until).map(before).fold(after(since), i64::max);
            peak = peak.max(most + moment.workspace as i64);
        }
        // Several gradients can be complete at the same tick. Their steps follow each other.
        let mut base = (usize::MAX, 0);
        for (at, most, end) in changes {
            if base.0 != *at {
                base = (*at, before(*at));
            }
            peak = peak.max(base.1 + most);
            base.1 += end;
        }
        peak.unsigned_abs()
    }
}

fn change(known: &[u64], moments: &[Moment], step: &Step) -> (usize, i64, i64) {
    let ticks = &step.ticks;
    let start = known[ticks.start.saturating_sub(1)] as i64;
    // A weight without a new one beside it is stepped in place.
    let replaced = step.old_weight.min(step.new_weight);
    let end = known[ticks.end - 1] as i64 - start - (step.held_on + replaced) as i64;
    let first = moments.partition_point(|moment| moment.sample.tick < ticks.start);
    let sampled = moments[first..]
        .iter()
        .take_while(|moment| moment.since < ticks.end)
        // Workspaces from before the step, or from after it, are not part of it.
        .filter(|moment| (ticks.start..=ticks.end).contains(&(moment.tick + 1)))
        .map(|moment| known[moment.tick] as i64 + moment.workspace as i64);
    let most = known[ticks.clone()].iter().map(|bytes| *bytes as i64);
    let most = most.chain(sampled).max().unwrap_or(start) - start;
    (step.at, most, end)
}

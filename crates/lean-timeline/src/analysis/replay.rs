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
use super::totals::Totals;
use crate::snapshot::{Category, Phase, PhaseKind, Snapshot};

/// The recorded step of one parameter.
#[derive(Default)]
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
                ..Step::default()
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

impl Step {
    /// How the recorded step changes the memory: at its highest and at its end, relative to before.
    fn change(&self, totals: &Totals) -> (i64, i64) {
        let known = totals.known();
        let start = known[self.ticks.start.saturating_sub(1)] as i64;
        let most = totals.peaks()[self.ticks.clone()].iter().max();
        // A weight without a new one beside it is stepped in place.
        let replaced = self.old_weight.min(self.new_weight);
        let end = known[self.ticks.end - 1] as i64 - (self.held_on + replaced) as i64;
        (most.map_or(0, |most| *most as i64 - start), end - start)
    }
}

/// The peak of `ticks`, from the forward pass to the optimizer, with the steps in them. They change
/// the memory as recorded, or take nothing and release the gradients.
pub(super) fn replay(totals: &Totals, steps: &[Step], ticks: Range<usize>, recorded: bool) -> u64 {
    let within = steps.iter().filter(|step| ticks.contains(&step.at));
    let (mut steps, mut peak, mut change) = (within.peekable(), 0, 0);
    for tick in ticks.clone() {
        peak = peak.max(totals.peaks()[tick] as i64 + change);
        // Several gradients can be complete at the same tick. Their steps follow each other.
        while let Some(step) = steps.next_if(|step| step.at == tick) {
            let (most, end) = match recorded {
                true => step.change(totals),
                false => (0, -(step.gradient as i64)),
            };
            peak = peak.max(totals.known()[tick] as i64 + change + most);
            change += end;
        }
    }
    peak.unsigned_abs()
}

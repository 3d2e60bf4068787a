//! What to switch on so that a training step fits into memory, from a recording of plain Burn.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use thiserror::Error;

use super::totals::Totals;
use crate::snapshot::{Category, Parameter, Phase, PhaseKind, Snapshot};

/// How the optimizer steps, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepping {
    /// As recorded.
    Recorded,
    /// Adam or AdamW in one pass over memory, without temporaries. The weights stay the same if the
    /// recording is of Adam or AdamW.
    InOnePass,
    /// The same with moments in 8 bits: other weights.
    EightBit,
}

/// A way to train, with its estimated peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whether gradient release is on. The weights are the same.
    pub release: bool,
    /// How the optimizer steps.
    pub stepping: Stepping,
    /// The estimated peak.
    pub peak: u64,
    /// Bytes of the optimizer's states.
    pub states: u64,
}

/// Why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoEstimate {
    /// A parameter is stepped within a backward pass.
    #[error("this is a recording of gradient release already")]
    IsReleased,
    /// No training step has a forward pass, a backward pass and an optimizer phase that steps a
    /// parameter; and in a snapshot without phases, nothing is a gradient.
    #[error("no training step was recorded from its forward pass to the end of its optimizer")]
    NoCompleteStep,
    /// A training step has more than one backward pass, or comes after one that was skipped.
    #[error(
        "a training step has {0} backward passes or more. If their gradients add up, what gradient \
         release makes of them is not estimated; if a step was skipped or not recorded, record others"
    )]
    Accumulates(usize),
    /// The gradients of the steps are made after the backward pass.
    #[error(
        "the optimizer steps with other gradients than backward has made, as with clipping: what \
         gradient release makes of these is not estimated"
    )]
    ChangedGradients,
}

impl Choice {
    /// All ways that are estimated, the one that changes the least first. Those with the same
    /// weights come before the others.
    ///
    /// With gradient release, a step needs at most what it needs without gradients, and one gradient
    /// with what its step takes: that of the parameter for which these are the most. Scopes and
    /// operations are not estimated: what they save is not known from a recording without them.
    ///
    /// # Errors
    ///
    /// The recording is of gradient release already, or has no complete training step.
    pub fn all(snapshot: &Snapshot, totals: &Totals) -> Result<Vec<Self>, NoEstimate> {
        if snapshot.phases.is_empty() {
            return Self::by_category(snapshot, totals).ok_or(NoEstimate::NoCompleteStep);
        }
        let step = Complete::last(snapshot)?;
        let gradients = step.gradients(snapshot)?;
        let states = totals.layer(Category::OptimizerState);
        let recorded = states[step.ticks.start];
        let parameters = || gradients.keys().map(|of| &snapshot.parameters[*of]);
        let adam = parameters().map(|of| 8 * elements(of)).sum();
        let small = parameters().map(|of| eight_bit(snapshot, of)).sum();
        let mut ways = vec![(Stepping::Recorded, recorded)];
        // Most others have other states than Adam's. LAMB's are as large.
        if recorded.abs_diff(adam) * 50 <= adam {
            ways.extend([(Stepping::InOnePass, adam), (Stepping::EightBit, small)]);
        }
        let most = |ticks: Range<usize>, without: &[u64]| {
            let bytes = |tick: usize| totals.peaks()[tick].saturating_sub(without[tick]);
            ticks.map(bytes).max().unwrap_or(0)
        };
        let before_optimizer = step.ticks.start..step.optimizer;
        let without_gradients = most(before_optimizer.clone(), totals.layer(Category::Gradients));
        let nothing = vec![0; snapshot.times.len()];
        let largest = gradients.values().max().copied().unwrap_or(0);
        let taken = |of: &(usize, Range<usize>)| {
            let before = totals.known()[of.1.start.saturating_sub(1)];
            gradients[&of.0] + most(of.1.clone(), &nothing).saturating_sub(before)
        };
        let taken = step.steps.iter().map(taken).max().unwrap_or(0);
        // A first step makes the states.
        let made = states[step.ticks.end - 1].saturating_sub(recorded);
        let way = |(stepping, states): (Stepping, u64)| {
            // An optimizer in one pass takes nothing besides its states.
            let (plain, released) = match stepping {
                Stepping::Recorded => (step.ticks.clone(), without_gradients + taken + made),
                _ => (before_optimizer.clone(), without_gradients + largest),
            };
            [(false, most(plain, &nothing)), (true, released)].map(|(release, peak)| Self {
                release,
                stepping,
                peak: (peak + states).saturating_sub(recorded),
                states,
            })
        };
        Ok(ways.into_iter().flat_map(way).collect())
    }

    /// From a snapshot of PyTorch's profiler, which has categories and no phases: what the optimizer
    /// takes counts as if all of it were needed with each gradient.
    fn by_category(snapshot: &Snapshot, totals: &Totals) -> Option<Vec<Self>> {
        let holders = snapshot.holders.iter();
        let gradients = holders.filter(|held| held.category == Category::Gradients);
        let largest = gradients.map(|held| held.bytes).max()?;
        let gradients = totals.layer(Category::Gradients).iter();
        let others = totals
            .peaks()
            .iter()
            .zip(gradients)
            .map(|(all, of)| all - of);
        let (plain, states) = (totals.peaks(), totals.layer(Category::OptimizerState));
        let way = |(release, peak)| Self {
            release,
            stepping: Stepping::Recorded,
            peak,
            states: states.iter().copied().max().unwrap_or(0),
        };
        let released = others.max()? + largest;
        Some(
            [(false, *plain.iter().max()?), (true, released)]
                .map(way)
                .into(),
        )
    }

    /// The first way whose peak is within so many bytes.
    pub fn within(all: &[Self], bytes: u64) -> Option<&Self> {
        all.iter().find(|choice| choice.peak <= bytes)
    }
}

fn elements(parameter: &Parameter) -> u64 {
    parameter.shape.iter().product::<usize>() as u64
}

/// Bytes of two moments in 8 bits, with a scale of 4 bytes for 128 elements. Parameters of the shape
/// of an embedding, and those of fewer than 4096 elements, keep 32 bits.
fn eight_bit(snapshot: &Snapshot, parameter: &Parameter) -> u64 {
    let elements = elements(parameter);
    let mut embeddings = snapshot.parameters.iter().filter(|of| of.is_embedding);
    match elements < 4096 || embeddings.any(|of| of.shape == parameter.shape) {
        true => 8 * elements,
        false => 2 * (elements + 4 * elements.div_ceil(128)),
    }
}

/// A training step from its forward pass to the end of its optimizer.
struct Complete {
    ticks: Range<usize>,
    backward: Range<usize>,
    /// The first tick of the optimizer.
    optimizer: usize,
    /// Parameters and ticks of their steps.
    steps: Vec<(usize, Range<usize>)>,
}

impl Complete {
    fn of(phases: &[Phase]) -> Option<Self> {
        let first = |kind| phases.iter().find(|of| of.kind == kind);
        let backward = first(PhaseKind::Backward)?;
        let steps = phases.iter().filter_map(|of| match of.kind {
            PhaseKind::Step(parameter) => Some((parameter, of.from..of.until)),
            _ => None,
        });
        first(PhaseKind::Forward)?;
        Some(Self {
            ticks: phases.first()?.from..phases.iter().map(|of| of.until).max()?,
            backward: backward.from..backward.until,
            optimizer: first(PhaseKind::Optimizer)?.from,
            steps: steps.collect(),
        })
    }

    /// The last of those in which the most parameters are stepped.
    fn last(snapshot: &Snapshot) -> Result<Self, NoEstimate> {
        let mut iterations: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
        for phase in snapshot.phases.iter().filter(|of| of.from < of.until) {
            iterations.entry(phase.iteration).or_default().push(*phase);
        }
        let backwards = |of: &[Phase]| -> usize {
            of.iter()
                .filter(|of| of.kind == PhaseKind::Backward)
                .count()
        };
        let is_released = |phases: &Vec<Phase>| {
            let steps = phases
                .iter()
                .filter(|of| matches!(of.kind, PhaseKind::Step(_)));
            let around = phases.iter().filter(|of| of.kind == PhaseKind::Backward);
            let mut around = around.map(|of| of.from..of.until);
            around.any(|ticks| steps.clone().any(|of| ticks.contains(&of.from)))
        };
        if iterations.values().any(is_released) {
            return Err(NoEstimate::IsReleased);
        }
        // Micro-batches have a forward pass each, and the last one a step. One without a step at the
        // end may be a step that was skipped, or that the recording does not reach.
        let (mut unstepped, mut before_a_step) = (0, 0);
        for phases in iterations.values().filter(|of| backwards(of) > 0) {
            match Self::of(phases) {
                None => unstepped += 1,
                Some(_) => before_a_step = before_a_step.max(std::mem::take(&mut unstepped)),
            }
        }
        let complete = iterations
            .values()
            .filter_map(|of| Some((Self::of(of)?, of)));
        let last = complete.max_by_key(|(step, _)| step.steps.len());
        let (step, phases) = last.ok_or(NoEstimate::NoCompleteStep)?;
        let batches = before_a_step.max(if unstepped > 1 { unstepped } else { 0 });
        match backwards(phases) + batches {
            1 => Ok(step),
            several => Err(NoEstimate::Accumulates(several)),
        }
    }

    /// Bytes of the gradients that the optimizer steps with, by parameter.
    fn gradients(&self, snapshot: &Snapshot) -> Result<HashMap<usize, u64>, NoEstimate> {
        let steps = self.steps.iter().cloned();
        let steps: HashMap<usize, Range<usize>> = steps.rev().collect();
        let mut gradients: HashMap<usize, u64> = steps.keys().map(|of| (*of, 0)).collect();
        for held in &snapshot.holders {
            let step = held
                .parameter
                .and_then(|of| Some((of, steps.get(&of)?.start)));
            let Some((parameter, start)) = step.filter(|_| held.category == Category::Gradients)
            else {
                continue;
            };
            if self.backward.start <= held.from && held.from < start && start < held.until {
                if held.from >= self.backward.end {
                    return Err(NoEstimate::ChangedGradients);
                }
                *gradients.entry(parameter).or_default() += held.bytes;
            }
        }
        Ok(gradients)
    }
}

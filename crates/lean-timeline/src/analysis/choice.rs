//! What to switch on so that a training step fits into memory, from a recording of plain Burn.

use std::collections::BTreeMap;
use std::ops::Range;

use thiserror::Error;

use super::peak::largest;
use super::replay::{Step, replay, steps};
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
    /// parameter. PyTorch's snapshots have no phases.
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
    /// Scopes and operations are not among them: what they save in a model is not known from a
    /// recording without them.
    ///
    /// # Errors
    ///
    /// The recording is of gradient release already, or has no complete training step.
    pub fn all(snapshot: &Snapshot, totals: &Totals) -> Result<Vec<Self>, NoEstimate> {
        let (phases, ticks, backward, optimizer) = last_complete(snapshot)?;
        let steps = steps(snapshot, &phases, &backward)?;
        let states = |bytes: fn(&Snapshot, &Parameter) -> u64| -> u64 {
            let of = |step: &Step| bytes(snapshot, &snapshot.parameters[step.parameter]);
            steps.iter().map(of).sum()
        };
        let recorded = totals.layer(Category::OptimizerState)[ticks.start];
        let (adam, small) = (states(in_32_bits), states(in_8_bits));
        let mut ways = vec![(Stepping::Recorded, recorded)];
        // Most others have other states than Adam's. LAMB's are as large.
        if recorded.abs_diff(adam) * 50 <= adam {
            ways.extend([(Stepping::InOnePass, adam), (Stepping::EightBit, small)]);
        }
        let way = |(stepping, states): (Stepping, u64)| {
            let is_recorded = stepping == Stepping::Recorded;
            // An optimizer in one pass takes nothing besides its states.
            let end = if is_recorded { ticks.end } else { optimizer };
            let plain = largest(totals, ticks.start..end).map_or(0, |(bytes, _)| bytes);
            let released = replay(totals, &steps, ticks.start..optimizer, is_recorded);
            [(false, plain), (true, released)].map(|(release, peak)| Self {
                release,
                stepping,
                peak: (peak + states).saturating_sub(recorded),
                states,
            })
        };
        Ok(ways.into_iter().flat_map(way).collect())
    }

    /// The first way whose peak is within so many bytes.
    pub fn within(all: &[Self], bytes: u64) -> Option<&Self> {
        all.iter().find(|choice| choice.peak <= bytes)
    }
}

fn elements(parameter: &Parameter) -> u64 {
    parameter.shape.iter().product::<usize>() as u64
}

/// Bytes of Adam's two moments.
fn in_32_bits(_: &Snapshot, parameter: &Parameter) -> u64 {
    8 * elements(parameter)
}

/// The same with a scale of 4 bytes for 128 elements. Parameters of the shape of an embedding, and
/// those of fewer than 4096 elements, keep 32 bits.
fn in_8_bits(snapshot: &Snapshot, parameter: &Parameter) -> u64 {
    let elements = elements(parameter);
    let mut embeddings = snapshot.parameters.iter().filter(|of| of.is_embedding);
    match elements < 4096 || embeddings.any(|of| of.shape == parameter.shape) {
        true => 8 * elements,
        false => 2 * (elements + 4 * elements.div_ceil(128)),
    }
}

fn is_step(phase: &Phase) -> bool {
    matches!(phase.kind, PhaseKind::Step(_))
}

/// The last of the training steps in which the most parameters are stepped: its phases, its ticks,
/// those of its backward pass, and the first of its optimizer.
type Complete = (Vec<Phase>, Range<usize>, Range<usize>, usize);

fn last_complete(snapshot: &Snapshot) -> Result<Complete, NoEstimate> {
    use PhaseKind::{Backward, Forward, Optimizer};
    let mut iterations: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
    for phase in snapshot.phases.iter().filter(|of| of.from < of.until) {
        iterations.entry(phase.iteration).or_default().push(*phase);
    }
    let first = |phases: &[Phase], kind| {
        let first = phases.iter().find(|phase| phase.kind == kind);
        first.map(|phase| phase.from..phase.until)
    };
    let backward = |phase: &&Phase| phase.kind == Backward;
    for phases in iterations.values() {
        for around in phases.iter().filter(backward) {
            let within = |of: &Phase| around.from <= of.from && of.until <= around.until;
            if phases.iter().any(|phase| is_step(phase) && within(phase)) {
                return Err(NoEstimate::IsReleased);
            }
        }
    }
    let trained = iterations
        .values()
        .filter(|of| first(of, Backward).is_some());
    let trained: Vec<bool> = trained.map(|of| first(of, Optimizer).is_some()).collect();
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
    let complete = iterations.into_values().filter_map(|phases| {
        let forward = first(&phases, Forward)?;
        let (backward, optimizer) = (first(&phases, Backward)?, first(&phases, Optimizer)?);
        phases.iter().find(|phase| is_step(phase))?;
        let end = phases.iter().map(|phase| phase.until).max()?;
        let begin = phases[0].from.min(forward.start);
        Some((phases, begin..end, backward, optimizer.start))
    });
    let stepped = |of: &Complete| of.0.iter().filter(|phase| is_step(phase)).count();
    let complete = complete
        .max_by_key(stepped)
        .ok_or(NoEstimate::NoCompleteStep)?;
    match complete.0.iter().filter(backward).count() {
        1 => Ok(complete),
        several => Err(NoEstimate::Accumulates(several)),
    }
}

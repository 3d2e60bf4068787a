//! What to switch on so that a training step fits into memory, from a recording of plain Burn.

use std::collections::BTreeMap;
use std::ops::Range;

use thiserror::Error;

use super::peak::Peak;
use super::replay::{Replay, steps};
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
        let recorded = totals.layer(Category::OptimizerState)[ticks.start];
        let stepped = |bytes: &dyn Fn(&Parameter) -> u64| -> u64 {
            let of = |step: &super::replay::Step| bytes(&snapshot.parameters[step.parameter]);
            steps.iter().map(of).sum()
        };
        let adam = stepped(&|parameter| 8 * elements(parameter));
        let small = stepped(&|parameter| eight_bit(snapshot, parameter));
        let mut ways = vec![(Stepping::Recorded, recorded)];
        // Most others have other states than Adam's. LAMB's are as large.
        if recorded.abs_diff(adam) * 50 <= adam {
            ways.extend([(Stepping::InOnePass, adam), (Stepping::EightBit, small)]);
        }
        let before_optimizer = ticks.start..optimizer;
        let way = |(stepping, states): (Stepping, u64)| {
            let is_recorded = stepping == Stepping::Recorded;
            // An optimizer in one pass takes nothing besides its states, in no phase.
            let plain = match is_recorded {
                true => ticks.clone(),
                false => before_optimizer.clone(),
            };
            let plain = Peak::within(snapshot, totals, plain).map_or(0, |peak| peak.bytes);
            let replay = Replay::new(snapshot, totals, &steps, is_recorded);
            let released = replay.peak(before_optimizer.clone());
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

fn elements(parameter: &Parameter) -> u64 {
    parameter.shape.iter().product::<usize>() as u64
}

fn is_step(phase: &Phase) -> bool {
    matches!(phase.kind, PhaseKind::Step(_))
}

/// The last of the training steps in which the most parameters are stepped: its phases, its ticks,
/// those of its backward pass, and the first of its optimizer.
type Complete = (Vec<Phase>, Range<usize>, Range<usize>, usize);

fn last_complete(snapshot: &Snapshot) -> Result<Complete, NoEstimate> {
    let mut iterations: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
    for phase in snapshot.phases.iter().filter(|of| of.from < of.until) {
        iterations.entry(phase.iteration).or_default().push(*phase);
    }
    let of_kind = |phases: &[Phase], kind| -> Vec<Phase> {
        let of_kind = phases.iter().filter(|phase| phase.kind == kind);
        of_kind.copied().collect()
    };
    let backwards = |phases: &[Phase]| of_kind(phases, PhaseKind::Backward);
    let is_released = |phases: &Vec<Phase>| {
        backwards(phases).iter().any(|around| {
            let within = |step: &Phase| around.from <= step.from && step.until <= around.until;
            phases.iter().any(|phase| is_step(phase) && within(phase))
        })
    };
    if iterations.values().any(is_released) {
        return Err(NoEstimate::IsReleased);
    }
    let has = |phases: &[Phase], kind| !of_kind(phases, kind).is_empty();
    let trained = iterations
        .values()
        .filter(|of| has(of, PhaseKind::Backward));
    let trained: Vec<bool> = trained.map(|of| has(of, PhaseKind::Optimizer)).collect();
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
    let is_complete = |phases: &Vec<Phase>| {
        use PhaseKind::{Backward, Forward, Optimizer};
        let is_whole = [Forward, Backward, Optimizer].map(|kind| has(phases, kind));
        is_whole == [true; 3] && phases.iter().any(is_step)
    };
    let complete = iterations.into_values().filter(is_complete);
    let phases = complete
        .max_by_key(|phases| phases.iter().filter(|phase| is_step(phase)).count())
        .ok_or(NoEstimate::NoCompleteStep)?;
    let backward = match backwards(&phases)[..] {
        [backward] => backward.from..backward.until,
        ref several => return Err(NoEstimate::Accumulates(several.len())),
    };
    let from = phases.iter().map(|phase| phase.from).min().unwrap_or(0);
    let until = phases.iter().map(|phase| phase.until).max().unwrap_or(0);
    let optimizer = of_kind(&phases, PhaseKind::Optimizer)[0].from;
    Ok((phases, from..until, backward, optimizer))
}

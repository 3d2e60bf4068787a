//! The peak of a training step with an optimizer in one pass whose states take fewer bytes.
//!
//! Such an optimizer takes no memory besides its states. So in its phase there is no more than at the
//! end of backward, and before it the states that were recorded are replaced by those that it would
//! have.

use super::replay::{Replay, steps};
use super::{Complete, NoEstimate, bounds};
use crate::analysis::{peak::Peak, totals::Totals};
use crate::snapshot::{Category, Parameter, Snapshot};

/// The estimated peak of a training step with an optimizer in one pass, from a recording of plain
/// Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatesEstimate {
    /// The recorded peak of that step.
    pub recorded: u64,
    /// Bytes of the states that were recorded.
    pub before: u64,
    /// Bytes of the states that the optimizer would have.
    pub after: u64,
    /// The peak without gradient release.
    pub plain: u64,
    /// Lower bound of the peak with gradient release.
    pub least: u64,
    /// Upper bound of the peak with gradient release.
    pub most: u64,
}

impl StatesEstimate {
    /// Replays the last complete training step; `bytes` are those of the states of a parameter.
    ///
    /// # Errors
    ///
    /// The recording is of gradient release already, or has no complete training step.
    pub fn of(
        snapshot: &Snapshot,
        totals: &Totals,
        bytes: impl Fn(&Parameter) -> u64,
    ) -> Result<Self, NoEstimate> {
        let step = Complete::last(snapshot)?;
        let steps = steps(snapshot, &step.phases, &step.backward)?;
        let after: u64 = steps
            .iter()
            .map(|step| bytes(&snapshot.parameters[step.parameter]))
            .sum();
        let before = totals.layer(Category::OptimizerState)[step.ticks.start];
        let with_states = |peak: u64| (peak + after).saturating_sub(before);
        let peak = |until| {
            let peak = Peak::within(snapshot, totals, step.ticks.start, until);
            peak.map_or(0, |peak| peak.bytes)
        };
        let [least, most] = bounds(snapshot, steps, |steps| {
            Replay::in_place(snapshot, totals, steps, step.ticks.start..step.optimizer)
        });
        Ok(Self {
            recorded: peak(step.ticks.end),
            before,
            after,
            plain: with_states(peak(step.optimizer)),
            least: with_states(least),
            most: with_states(most),
        })
    }

    /// Adam or AdamW in one pass: two moments in 32 bits.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn of_adamw(snapshot: &Snapshot, totals: &Totals) -> Result<Self, NoEstimate> {
        Self::of(snapshot, totals, |parameter| 8 * elements(parameter))
    }

    /// AdamW in one pass with moments in 8 bits: 2.06 bytes of states for each element, and 8 in
    /// parameters of the shape of an embedding or of fewer than 4096 elements, which keep 32 bits.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn of_8_bit_adamw(snapshot: &Snapshot, totals: &Totals) -> Result<Self, NoEstimate> {
        let embeddings = snapshot.parameters.iter().filter(|it| it.is_embedding);
        let embeddings: Vec<_> = embeddings.map(|embedding| &embedding.shape).collect();
        Self::of(snapshot, totals, |parameter| {
            let elements = elements(parameter);
            match elements < 4096 || embeddings.contains(&&parameter.shape) {
                true => 8 * elements,
                // A scale of 4 bytes for 128 elements.
                false => 2 * (elements + 4 * elements.div_ceil(128)),
            }
        })
    }
}

fn elements(parameter: &Parameter) -> u64 {
    parameter.shape.iter().product::<usize>() as u64
}

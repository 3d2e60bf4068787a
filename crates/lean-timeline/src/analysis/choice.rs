//! What to switch on so that a training step fits into memory, from a recording of plain Burn.

use super::estimate::{Estimate, NoEstimate, StatesEstimate};
use super::totals::Totals;
use crate::snapshot::Snapshot;

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
        let recorded = Estimate::of(snapshot, totals)?;
        let mut all = vec![(Stepping::Recorded, recorded.recorded, recorded.most)];
        let exact = StatesEstimate::of_adamw(snapshot, totals)?;
        // Most others have other states than Adam's. LAMB's are as large.
        if exact.before.abs_diff(exact.after) * 50 <= exact.after {
            all.push((Stepping::InOnePass, exact.plain, exact.most));
            let small = StatesEstimate::of_8_bit_adamw(snapshot, totals)?;
            all.push((Stepping::EightBit, small.plain, small.most));
        }
        let both = |(stepping, plain, released)| {
            [(false, plain), (true, released)].map(|(release, peak)| Self {
                release,
                stepping,
                peak,
            })
        };
        Ok(all.into_iter().flat_map(both).collect())
    }

    /// The first way whose peak is within so many bytes.
    pub fn within(all: &[Self], bytes: u64) -> Option<&Self> {
        all.iter().find(|choice| choice.peak <= bytes)
    }
}

//! The workspaces of operations: memory in the samples that no holder has.

use super::totals::Totals;
use crate::snapshot::{Sample, Snapshot};
use std::mem;

/// The tick of the peak of a [`Sample`], as far as it can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The tick: from the previous sample's on, the one with the largest total of holders; the last
    /// of several.
    pub tick: usize,
    /// Bytes of the sample's peak that no holder has: memory that the operation released before it
    /// returned.
    pub workspace: u64,
    /// The sample.
    pub sample: Sample,
    /// The tick of the previous sample; 0 for the first.
    pub since: usize,
}

/// The moments of all samples, in order.
pub fn moments<'a>(
    snapshot: &'a Snapshot,
    totals: &'a Totals,
) -> impl Iterator<Item = Moment> + use<'a> {
    let known = totals.known();
    let mut last = 0;
    snapshot.samples.iter().map(move |sample| {
        let since = mem::replace(&mut last, sample.tick);
        let tick = (since..=sample.tick)
            .max_by_key(|tick| known[*tick])
            .expect("the range contains its end");
        Moment {
            tick,
            workspace: sample.peak.saturating_sub(known[tick]),
            sample: *sample,
            since,
        }
    })
}

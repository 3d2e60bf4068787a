//! What the samples add to the holders: the memory that operations take for themselves.

use crate::analysis::Totals;
use crate::snapshot::{Sample, Snapshot};
use std::mem;

/// When the peak of a [`Sample`] was, as well as can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The tick: of those since the sample before, that before included, the last one of those
    /// after which the most was known.
    pub tick: usize,
    /// What is in the sample's peak and in nobody's hands: what the operation took for itself and
    /// gave back before it returned.
    pub workspace: u64,
    /// The sample.
    pub sample: Sample,
    /// The tick of the sample before; 0, if it is the first.
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
            .expect("a range that has its end");
        Moment {
            tick,
            workspace: sample.peak.saturating_sub(known[tick]),
            sample: *sample,
            since,
        }
    })
}

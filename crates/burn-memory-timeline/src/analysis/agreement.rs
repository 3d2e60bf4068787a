//! How well the holders add up to what the allocator or the device says.

use crate::analysis::Totals;
use crate::snapshot::Snapshot;

/// The sample that differs most from the sum of the holders, by its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// How many samples there are.
    pub samples: usize,
    /// The tick of the one that differs most.
    pub tick: usize,
    /// Bytes in use there.
    pub in_use: u64,
    /// Bytes that holders have there.
    pub known: u64,
}

impl Agreement {
    /// Compares all samples; `None` where there are none.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Option<Self> {
        let samples = snapshot.samples.iter().map(|sample| Self {
            samples: snapshot.samples.len(),
            tick: sample.tick,
            in_use: sample.in_use,
            known: totals.known()[sample.tick],
        });
        // Of two that differ alike, the first.
        samples.reduce(|worst, next| match next.share() > worst.share() {
            true => next,
            false => worst,
        })
    }

    /// Bytes in use that nobody holds; below 0, bytes that somebody holds and that are not in use.
    pub fn unattributed(&self) -> i64 {
        self.in_use as i64 - self.known as i64
    }

    /// The part of what is in use that it differs by: 0.01 for one hundredth. Infinite where
    /// something is held and nothing in use.
    pub fn share(&self) -> f64 {
        match self.unattributed() {
            0 => 0.0,
            bytes => bytes.unsigned_abs() as f64 / self.in_use as f64,
        }
    }
}

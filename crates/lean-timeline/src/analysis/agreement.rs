//! How far the total of the holders is from the bytes in use.

use super::totals::Totals;
use crate::snapshot::Snapshot;

/// The sample that differs most from the total of the holders, in relation to the bytes in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Number of samples.
    pub samples: usize,
    /// The tick of the sample that differs most.
    pub tick: usize,
    /// Bytes in use there.
    pub in_use: u64,
    /// Bytes of all holders there.
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
        // The first of several that differ equally.
        samples.reduce(|worst, next| match next.share() > worst.share() {
            true => next,
            false => worst,
        })
    }

    /// Bytes in use that no holder has; negative where the holders have more than is in use.
    pub fn unattributed(&self) -> i64 {
        self.in_use as i64 - self.known as i64
    }

    /// The difference as a share of the bytes in use: 0.01 for one hundredth. Infinite where
    /// holders have bytes and none are in use.
    pub fn share(&self) -> f64 {
        match self.unattributed() {
            0 => 0.0,
            bytes => bytes.unsigned_abs() as f64 / self.in_use as f64,
        }
    }
}

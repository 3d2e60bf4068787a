//! The samples of the allocator or the device: at most one for each tick.

use crate::snapshot::Sample;

#[derive(Debug, Default)]
pub(super) struct Samples {
    pub(super) samples: Vec<Sample>,
}

impl Samples {
    pub(super) fn first(&self) -> Option<&Sample> {
        self.samples.first()
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// Adds a sample. One of the same tick as the last, from an operation that allocated nothing,
    /// is merged with it.
    pub(super) fn add(&mut self, sample: Sample) {
        match self.samples.last_mut() {
            Some(last) if last.tick == sample.tick => {
                if sample.peak > last.peak {
                    last.operation = sample.operation;
                }
                last.peak = last.peak.max(sample.peak);
                last.in_use = sample.in_use;
            }
            _ => self.samples.push(sample),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Sample>()
    }
}

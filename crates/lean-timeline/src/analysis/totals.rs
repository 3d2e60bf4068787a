//! The bytes of each category at each tick, and those in use.

use crate::snapshot::{Category, Snapshot};

/// Bytes after every tick.
#[derive(Clone, Debug)]
pub struct Totals {
    /// One vector for each of [`Category::ALL`], in its order.
    layers: [Vec<u64>; Category::ALL.len()],
    known: Vec<u64>,
    peaks: Vec<u64>,
}

impl Totals {
    /// Adds up the holders of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let ticks = snapshot.times.len();
        let mut layers: [Vec<u64>; 6] = std::array::from_fn(|_| vec![0; ticks]);
        // First the change at each tick, which wraps below zero, then the running sums.
        for held in &snapshot.holders {
            let layer = &mut layers[held.category as usize];
            layer[held.from] = layer[held.from].wrapping_add(held.bytes);
            if let Some(end) = layer.get_mut(held.until) {
                *end = end.wrapping_sub(held.bytes);
            }
        }
        let mut known = vec![0; ticks];
        for layer in &mut layers {
            let mut sum = 0_u64;
            for (bytes, known) in layer.iter_mut().zip(&mut known) {
                sum = sum.wrapping_add(*bytes);
                *bytes = sum;
                *known = sum.wrapping_add(*known);
            }
        }
        let (mut peaks, mut since) = (known.clone(), 0);
        for sample in &snapshot.samples {
            // As far as it can be known: where the holders had the most since the sample before.
            let most = (since..=sample.tick).max_by_key(|tick| known[*tick]);
            let peak = &mut peaks[most.unwrap_or(sample.tick)];
            *peak = sample.peak.max(*peak);
            since = sample.tick;
        }
        Self {
            layers,
            known,
            peaks,
        }
    }

    /// Bytes of a category after each tick.
    pub fn layer(&self, category: Category) -> &[u64] {
        &self.layers[category as usize]
    }

    /// Bytes of all categories after each tick.
    pub fn known(&self) -> &[u64] {
        &self.known
    }

    /// The most bytes in use at each tick: with the workspaces of operations, which are in no holder
    /// and only in the samples.
    pub fn peaks(&self) -> &[u64] {
        &self.peaks
    }

    /// The largest total of a category, and the first tick with it. The temporaries include the
    /// workspaces of operations.
    pub fn most(&self, category: Category) -> (u64, usize) {
        let layer = self.layer(category).iter().enumerate();
        let bytes = |(tick, bytes): (usize, &u64)| match category {
            Category::Temporaries => (bytes + self.peaks[tick] - self.known[tick], tick),
            _ => (*bytes, tick),
        };
        let most = layer
            .map(bytes)
            .reduce(|most, next| if next.0 > most.0 { next } else { most });
        most.unwrap_or_default()
    }

    /// The largest difference between the bytes in use at a sample and those of all holders, as a
    /// share of the bytes in use; `None` without samples.
    pub fn disagreement(&self, snapshot: &Snapshot) -> Option<f64> {
        let shares = snapshot.samples.iter().map(|sample| {
            let difference = sample.in_use.abs_diff(self.known[sample.tick]);
            difference as f64 / sample.in_use.max(1) as f64
        });
        shares.reduce(f64::max)
    }
}

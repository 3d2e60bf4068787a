//! The bytes of each category at each tick, and how they compare with the samples.

use crate::snapshot::{Category, Sample, Snapshot};

/// Bytes of every category after every tick.
#[derive(Clone, Debug)]
pub struct Totals {
    /// One vector for each of [`Category::ALL`], in its order.
    layers: [Vec<u64>; Category::ALL.len()],
    known: Vec<u64>,
}

/// The largest total of a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// The total.
    pub bytes: u64,
    /// The first tick with this total.
    pub tick: usize,
}

impl Totals {
    /// Adds up the holders of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let ticks = snapshot.times.len();
        let mut layers: [Vec<u64>; 6] = std::array::from_fn(|_| vec![0; ticks]);
        // First the change at each tick, which wraps below zero, then the running sums.
        for holder in &snapshot.holders {
            let layer = &mut layers[holder.category as usize];
            layer[holder.from] = layer[holder.from].wrapping_add(holder.bytes);
            if let Some(end) = layer.get_mut(holder.until) {
                *end = end.wrapping_sub(holder.bytes);
            }
        }
        let mut known = vec![0; ticks];
        for layer in &mut layers {
            let mut sum = 0_u64;
            for (bytes, known) in layer.iter_mut().zip(&mut known) {
                sum = sum.wrapping_add(*bytes);
                *bytes = sum;
                *known += sum;
            }
        }
        Self { layers, known }
    }

    /// Bytes of a category after each tick.
    pub fn layer(&self, category: Category) -> &[u64] {
        &self.layers[category as usize]
    }

    /// Bytes of all categories after each tick.
    pub fn known(&self) -> &[u64] {
        &self.known
    }

    /// The largest total of a category. The temporaries include the workspaces of operations.
    pub fn most(&self, snapshot: &Snapshot, category: Category) -> Most {
        let layer = self.layer(category);
        let held = layer.iter().copied().enumerate();
        let workspaces = moments(snapshot, self).map(|of| (of.tick, layer[of.tick] + of.workspace));
        let workspaces = workspaces.filter(|_| category == Category::Temporaries);
        let all = held.chain(workspaces);
        all.fold(Most::default(), |most, (tick, bytes)| {
            match bytes > most.bytes {
                true => Most { bytes, tick },
                false => most,
            }
        })
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

/// The tick of the peak of a sample, as far as it can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The tick: from the previous sample's on, the one with the largest total of holders; the last
    /// of several.
    pub(crate) tick: usize,
    /// Bytes of the sample's peak that no holder has: memory that the operation released before it
    /// returned.
    pub(crate) workspace: u64,
    pub(crate) sample: Sample,
    /// The tick of the previous sample; 0 for the first.
    pub(crate) since: usize,
}

/// The moments of all samples, in order.
pub(crate) fn moments<'a>(
    snapshot: &'a Snapshot,
    totals: &'a Totals,
) -> impl Iterator<Item = Moment> + use<'a> {
    let known = totals.known();
    let mut last = 0;
    snapshot.samples.iter().map(move |sample| {
        let since = std::mem::replace(&mut last, sample.tick);
        let ticks = since..=sample.tick;
        let tick = ticks.max_by_key(|tick| known[*tick]).unwrap_or(since);
        Moment {
            tick,
            workspace: sample.peak.saturating_sub(known[tick]),
            sample: *sample,
            since,
        }
    })
}

//! How much each category has at each tick.

use crate::analysis::moments;
use crate::snapshot::{Category, Snapshot};

/// Bytes of every category after every tick.
#[derive(Clone, Debug)]
pub struct Totals {
    /// One for each of [`Category::ALL`].
    layers: [Vec<u64>; Category::ALL.len()],
    known: Vec<u64>,
}

/// The most bytes that a category has at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// How many.
    pub bytes: u64,
    /// The first tick after which it has them.
    pub tick: usize,
}

impl Totals {
    /// Adds up the holders of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let ticks = snapshot.times.len();
        let mut layers: [Vec<u64>; 6] = std::array::from_fn(|_| vec![0; ticks]);
        // First what each tick changes, wrapping below zero, then the sums of it.
        for holder in &snapshot.holders {
            let layer = &mut layers[holder.category.layer()];
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
        &self.layers[category.layer()]
    }

    /// Bytes of all categories after each tick.
    pub fn known(&self) -> &[u64] {
        &self.known
    }

    /// The most bytes that a category has at once, with what operations took for themselves counted
    /// among the temporaries.
    pub fn most(&self, snapshot: &Snapshot, category: Category) -> Most {
        let layer = self.layer(category);
        let mut most = Most { bytes: 0, tick: 0 };
        let mut see = |bytes, tick| {
            if bytes > most.bytes {
                most = Most { bytes, tick };
            }
        };
        for (tick, bytes) in layer.iter().enumerate() {
            see(*bytes, tick);
        }
        if category == Category::Temporaries {
            for moment in moments(snapshot, self) {
                see(layer[moment.tick] + moment.workspace, moment.tick);
            }
        }
        most
    }
}

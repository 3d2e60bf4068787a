//! The bytes of each category at each tick.

use crate::snapshot::{Category, Snapshot};

/// Bytes of every category after every tick.
#[derive(Clone, Debug)]
pub struct Totals {
    /// One vector for each of [`Category::ALL`].
    layers: [Vec<u64>; Category::ALL.len()],
    known: Vec<u64>,
}

impl Totals {
    /// Adds up the holders of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let ticks = snapshot.times.len();
        let mut layers: [Vec<u64>; 6] = std::array::from_fn(|_| vec![0; ticks]);
        // First the change at each tick, which wraps below zero, then the running sums.
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
}

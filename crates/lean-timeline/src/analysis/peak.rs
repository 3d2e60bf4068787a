//! The peak, and what is in it.

use std::cmp::Reverse;

use super::totals::Totals;
use crate::snapshot::{Category, Holder, Snapshot};

/// The moment at which the most memory is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Bytes in use.
    pub bytes: u64,
    /// The first tick with so many.
    pub tick: usize,
    /// The holders of this tick, the largest first.
    pub holders: Vec<Holder>,
    /// Bytes of no holder: memory that an operation released before it returned. They are counted as
    /// temporaries of the last holder that was made.
    pub workspace: u64,
}

impl Peak {
    /// Finds it; `None` in a snapshot without ticks.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Option<Self> {
        let peaks = totals.peaks().iter().enumerate();
        let (tick, &bytes) = peaks.max_by_key(|(tick, bytes)| (**bytes, Reverse(*tick)))?;
        let holders = snapshot.holders.iter();
        let held = holders.filter(|held| held.from <= tick && tick < held.until);
        let mut holders: Vec<Holder> = held.copied().collect();
        let workspace = bytes - totals.known()[tick];
        holders.sort_by_key(|held| Reverse(held.bytes));
        Some(Self {
            bytes,
            tick,
            holders,
            workspace,
        })
    }

    /// The bytes that a category has in it.
    pub fn bytes_of(&self, category: Category) -> u64 {
        let of_category = self.holders.iter().filter(|of| of.category == category);
        let held: u64 = of_category.map(|held| held.bytes).sum();
        match category {
            Category::Temporaries => held + self.workspace,
            _ => held,
        }
    }
}

//! The peak, and what is in it.

use std::cmp::Reverse;
use std::ops::Range;

use super::totals::{Moment, Totals, moments};
use crate::snapshot::{Category, Snapshot};

/// The moment at which the most memory is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Bytes in use: the largest peak of the samples; without samples, the largest total of the
    /// holders.
    pub bytes: u64,
    /// The tick of the peak.
    pub tick: usize,
    /// Its pieces, the largest first.
    pub pieces: Vec<Piece>,
}

/// A piece of the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its size.
    pub bytes: u64,
    /// Its purpose.
    pub category: Category,
    /// The parameter that it is, or that it was computed for.
    pub parameter: Option<usize>,
    /// The operation that made it, if it is known.
    pub operation: Option<usize>,
    /// The tick of its allocation.
    pub from: usize,
    /// Whether it is in no holder: the workspace of an operation.
    pub is_workspace: bool,
}

impl Peak {
    /// Finds the first largest peak; `None` in a snapshot without ticks.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Option<Self> {
        Self::within(snapshot, totals, 0..snapshot.times.len())
    }

    /// Finds the first largest peak of these ticks.
    pub(crate) fn within(
        snapshot: &Snapshot,
        totals: &Totals,
        ticks: Range<usize>,
    ) -> Option<Self> {
        let known = totals.known();
        // `max_by_key` returns the last of equals, and the first is wanted.
        let sampled = moments(snapshot, totals)
            .filter(|moment| ticks.contains(&moment.tick))
            .max_by_key(|moment| (moment.sample.peak, Reverse(moment.sample.tick)));
        let (tick, bytes) = match sampled {
            Some(moment) => (moment.tick, moment.sample.peak),
            None => {
                let tick = ticks.max_by_key(|tick| (known[*tick], Reverse(*tick)))?;
                (tick, known[tick])
            }
        };
        let holders = snapshot.holders.iter();
        let held = holders.filter(|held| held.from <= tick && tick < held.until);
        let held = held.map(|held| Piece {
            bytes: held.bytes,
            category: held.category,
            parameter: held.parameter,
            operation: Some(held.operation),
            from: held.from,
            is_workspace: false,
        });
        let workspace = sampled.and_then(|moment| Piece::workspace(snapshot, &moment));
        let mut pieces: Vec<Piece> = held.chain(workspace).collect();
        pieces.sort_by_key(|piece| Reverse(piece.bytes));
        Some(Self {
            bytes,
            tick,
            pieces,
        })
    }

    /// The bytes that a category has in it.
    pub fn bytes_of(&self, category: Category) -> u64 {
        let of_category = self.pieces.iter().filter(|of| of.category == category);
        of_category.map(|piece| piece.bytes).sum()
    }
}

impl Piece {
    fn workspace(snapshot: &Snapshot, moment: &Moment) -> Option<Self> {
        let sample = moment.sample;
        // It belongs to the parameter that the output of the operation belongs to.
        let holders = &snapshot.holders;
        let first = holders.partition_point(|held| held.from <= moment.since);
        let mut made = holders[first..]
            .iter()
            .take_while(|held| held.from <= sample.tick);
        let made = made.find(|held| Some(held.operation) == sample.operation);
        (moment.workspace > 0).then_some(Self {
            bytes: moment.workspace,
            category: Category::Temporaries,
            parameter: made.and_then(|held| held.parameter),
            operation: sample.operation,
            from: sample.tick,
            is_workspace: true,
        })
    }
}

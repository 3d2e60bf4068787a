//! The peak, and what is in it.

use super::{
    moment::{Moment, moments},
    place::Place,
    totals::Totals,
};
use crate::snapshot::{Category, Holder, Snapshot};
use std::cmp::Reverse;

/// The moment at which the most memory is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Bytes in use: the largest peak of the samples; without samples, the largest total of the
    /// holders.
    pub bytes: u64,
    /// The tick of the peak.
    pub tick: usize,
    /// The time of the peak, in microseconds since the start of the recording.
    pub time: u64,
    /// The phase of the training; `None` between phases.
    pub place: Option<Place>,
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
    /// Its holder, an index into [`Snapshot::holders`]; `None` for the workspace of an operation.
    pub holder: Option<usize>,
    /// The tick of its allocation.
    pub from: usize,
}

impl Peak {
    /// Finds the first largest peak; `None` in a snapshot without ticks.
    pub fn of(snapshot: &Snapshot, totals: &Totals) -> Option<Self> {
        Self::within(snapshot, totals, 0, usize::MAX)
    }

    /// Finds the first largest peak of the ticks `from..until`; `None` where there are none.
    pub fn within(snapshot: &Snapshot, totals: &Totals, from: usize, until: usize) -> Option<Self> {
        let known = totals.known();
        let range = from..until.min(known.len());
        // `max_by_key` returns the last of equals, and the first is wanted.
        let sampled = moments(snapshot, totals)
            .filter(|moment| range.contains(&moment.tick))
            .max_by_key(|moment| (moment.sample.peak, Reverse(moment.sample.tick)));
        let (tick, bytes, workspace) = match sampled {
            Some(moment) => (
                moment.tick,
                moment.sample.peak,
                Piece::workspace(snapshot, &moment),
            ),
            None => {
                let tick = range.max_by_key(|tick| (known[*tick], Reverse(*tick)))?;
                (tick, known[tick], None)
            }
        };
        let mut pieces: Vec<Piece> = snapshot
            .holders
            .iter()
            .enumerate()
            .filter(|(_, holder)| holder.from <= tick && tick < holder.until)
            .map(|(number, holder)| Piece::of(number, holder))
            .chain(workspace)
            .collect();
        pieces.sort_by_key(|piece| Reverse(piece.bytes));
        Some(Self {
            bytes,
            tick,
            time: snapshot.times[tick],
            place: Place::of(snapshot, tick),
            pieces,
        })
    }

    /// The bytes that a category has in it.
    pub fn bytes_of(&self, category: Category) -> u64 {
        let pieces = self.pieces.iter();
        pieces
            .filter(|piece| piece.category == category)
            .map(|piece| piece.bytes)
            .sum()
    }
}

impl Piece {
    fn of(number: usize, holder: &Holder) -> Self {
        Self {
            bytes: holder.bytes,
            category: holder.category,
            parameter: holder.parameter,
            operation: Some(holder.operation),
            holder: Some(number),
            from: holder.from,
        }
    }

    fn workspace(snapshot: &Snapshot, moment: &Moment) -> Option<Self> {
        let sample = moment.sample;
        // The workspace belongs to the parameter that the output of the operation belongs to.
        let holders = &snapshot.holders;
        let first = holders.partition_point(|holder| holder.from <= moment.since);
        let made = holders[first..]
            .iter()
            .take_while(|holder| holder.from <= sample.tick)
            .find(|holder| Some(holder.operation) == sample.operation);
        (moment.workspace > 0).then_some(Self {
            bytes: moment.workspace,
            category: Category::Temporaries,
            parameter: made.and_then(|holder| holder.parameter),
            operation: sample.operation,
            holder: None,
            from: sample.tick,
        })
    }
}

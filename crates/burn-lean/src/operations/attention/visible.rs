//! Which keys a query attends to: by their order, their distance and their documents.

use std::collections::HashMap;
use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor};

use crate::backend::reading_waits;

/// Products of fewer rows of scores are slower.
pub(in super::super) const FEWEST_ROWS: usize = 32;

/// The keys that each query attends to. The last query and the last key are at the same position.
#[derive(Clone, Debug)]
pub(in super::super) struct Visible {
    time: usize,
    key_time: usize,
    is_causal: bool,
    /// A query attends to keys that are less than this far away.
    window: Option<usize>,
    documents: Option<Documents>,
}

/// Sequences that share a row of the batch.
#[derive(Clone, Debug)]
struct Documents {
    /// `[batch, time]`
    ids: Tensor<2, Int>,
    /// The first and the last position of the document at each position of each row. Empty where
    /// reading would wait for the device.
    extents: Vec<[usize; 2]>,
}

impl Documents {
    fn new(ids: Tensor<2, Int>) -> Self {
        let [_, time] = ids.dims();
        let mut extents = Vec::new();
        if time > 0 && !reading_waits(&ids.clone().into_dispatch()) {
            let ids: Vec<i64> = ids.to_data().iter().collect();
            extents = ids.chunks_exact(time).flat_map(extents_of).collect();
        }
        Self { ids, extents }
    }
}

/// The first and the last position of the id at each position.
fn extents_of(ids: &[i64]) -> Vec<[usize; 2]> {
    let mut extents = HashMap::<i64, [usize; 2]>::new();
    for (at, id) in ids.iter().enumerate() {
        extents.entry(*id).or_insert([at, at])[1] = at;
    }
    ids.iter().map(|id| extents[id]).collect()
}

impl Visible {
    pub(super) fn new(
        [time, key_time]: [usize; 2],
        is_causal: bool,
        window: Option<usize>,
        documents: Option<Tensor<2, Int>>,
    ) -> Self {
        Self {
            time,
            key_time,
            is_causal,
            // No key is farther away.
            window: window.map(|window| window.min(time + key_time)),
            documents: documents.map(Documents::new),
        }
    }

    /// The keys from the first to the last that some query of these rows attends to, and at least
    /// one. No other key has a weight.
    pub(in super::super) fn keys(&self, batch: Range<usize>, rows: Range<usize>) -> Range<usize> {
        let of_batch = |batch| rows.clone().map(move |row| self.keys_of_row(batch, row));
        let keys = batch.flat_map(of_batch).filter(|keys| !keys.is_empty());
        let hull = |one: Range<usize>, other: Range<usize>| {
            one.start.min(other.start)..one.end.max(other.end)
        };
        keys.reduce(hull).unwrap_or(0..1.min(self.key_time))
    }

    /// The keys from the first to the last that a query attends to.
    fn keys_of_row(&self, batch: usize, row: usize) -> Range<usize> {
        // The position of the query is `at - time`, which may be negative.
        let (at, time) = (row + self.key_time, self.time);
        let end = match (self.is_causal, self.window) {
            (true, _) => (at + 1).saturating_sub(time),
            (false, Some(window)) => (at + window).saturating_sub(time),
            (false, None) => self.key_time,
        };
        let start = self
            .window
            .map_or(0, |window| (at + 1).saturating_sub(time + window));
        let [first, last] = self.extent(batch, row).unwrap_or([0, self.key_time]);
        let end = end.min(self.key_time).min(last + 1);
        start.max(first).min(end)..end
    }

    fn extent(&self, batch: usize, position: usize) -> Option<[usize; 2]> {
        let extents = &self.documents.as_ref()?.extents;
        extents.get(batch * self.time + position).copied()
    }

    /// Rows of about this many scores, if these are at least [`FEWEST_ROWS`] and a row does not see
    /// all keys: so few that most of what they see is common to them.
    pub(in super::super) fn rows_of_window(&self, scores: usize) -> Option<usize> {
        let most = self.window?.max(FEWEST_ROWS);
        let keys = (2 * most).min(self.key_time.max(1));
        Some((scores / keys).clamp(FEWEST_ROWS, most))
    }

    /// Whether there may be a query that attends to no key.
    pub(super) fn may_be_none(&self) -> bool {
        (self.is_causal || self.window.is_some()) && self.key_time < self.time
    }

    /// Replaces the scores of keys that a query does not attend to. The first of the scores is that
    /// of the key `first`.
    #[cfg(feature = "flex")]
    pub(in super::super) fn hide(
        &self,
        scores: &mut [f32],
        [batch, row]: [usize; 2],
        first: usize,
        value: f32,
    ) {
        let Range { start, end } = self.keys_of_row(batch, row);
        let (start, end) = (start.max(first) - first, end.max(first) - first);
        scores[end..].fill(value);
        scores[..start].fill(value);
        // Ids of another document may stand between those of one.
        let own = self.extent(batch, row);
        if own.is_some() {
            for (at, score) in scores[..end].iter_mut().enumerate().skip(start) {
                if self.extent(batch, first + at) != own {
                    *score = value;
                }
            }
        }
    }

    /// Masks of scores `[batch, heads, rows, keys]`, which are true where a query does not attend to
    /// a key.
    pub(super) fn masks(
        &self,
        [batch, rows, keys]: [Range<usize>; 3],
        device: &Device,
    ) -> Vec<Tensor<4, Bool>> {
        let dims = [rows.len(), keys.len()];
        // The diagonal of queries and keys at the same position.
        let diagonal = (rows.start + self.key_time) as i64 - (self.time + keys.start) as i64;
        let most = self.window.map(|window| window as i64 - 1);
        let latest = if self.is_causal { Some(0) } else { most };
        let of_order = latest
            .map(|latest| Tensor::<2, Bool>::tril_mask(dims, diagonal + latest, device))
            .into_iter()
            .chain(most.map(|most| Tensor::triu_mask(dims, diagonal - most, device)));
        let mut masks: Vec<_> = of_order.map(Tensor::unsqueeze).collect();
        if let Some(Documents { ids, .. }) = &self.documents {
            let dims = [batch.len(), 1, rows.len(), keys.len()];
            let of =
                |range: Range<usize>, dims| ids.clone().slice([batch.clone(), range]).reshape(dims);
            let [of_rows, of_keys] = [
                of(rows.clone(), [dims[0], 1, dims[2], 1]),
                of(keys, [dims[0], 1, 1, dims[3]]),
            ];
            masks.push(of_rows.expand(dims).not_equal(of_keys.expand(dims)));
        }
        masks
    }
}

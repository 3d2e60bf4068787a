//! The shapes of attention, and the chunks that its scores are made in.

use std::ops::Range;

use burn::tensor::Tensor;

use super::visible::{FEWEST_ROWS, Visible};
use crate::backend::reading_waits;
use crate::operations::chunks::chunks_of;

/// Bytes of scores per chunk, if these are at least [`FEWEST_ROWS`]. So scores grow with the number
/// of keys, and not with its square. Up to four tensors of that size exist at once. On a GPU, each
/// chunk starts a few kernels.
fn chunk_bytes(query: &Tensor<4>) -> usize {
    match reading_waits(&query.clone().into_dispatch()) {
        true => 16 << 20,
        false => 1 << 20,
    }
}

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Dimensions {
    pub(in super::super) batch: usize,
    pub(in super::super) heads: usize,
    pub(in super::super) time: usize,
    pub(in super::super) head_size: usize,
    pub(in super::super) key_heads: usize,
    pub(in super::super) key_time: usize,
    pub(in super::super) value_size: usize,
    /// Bytes of scores per chunk.
    pub(super) chunk_bytes: usize,
}

impl Dimensions {
    pub(super) fn of(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) -> Self {
        let [batch, heads, time, head_size] = query.dims();
        let [_, key_heads, key_time, value_size] = value.dims();
        assert_eq!(
            key.dims(),
            [batch, key_heads, key_time, head_size],
            "attention: keys `[batch, key heads, key time, head size]` for queries {:?} and values {:?}",
            query.dims(),
            value.dims()
        );
        assert_eq!(value.dims()[0], batch, "attention: the batches differ");
        assert!(
            key_heads > 0 && heads.is_multiple_of(key_heads),
            "attention: {heads} heads are no multiple of {key_heads}"
        );
        Self {
            batch,
            heads,
            time,
            head_size,
            key_heads,
            key_time,
            value_size,
            chunk_bytes: chunk_bytes(query),
        }
    }

    /// The scores: `[batch, heads, time, key time]`.
    pub(super) fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.time, self.key_time]
    }

    pub(super) fn assert_scores(&self, what: &str, dims: [usize; 4]) {
        let scores = self.scores();
        let fits = dims
            .iter()
            .zip(scores)
            .all(|(dim, score)| *dim == 1 || *dim == score);
        assert!(fits, "attention: a {what} {dims:?} for scores {scores:?}");
    }

    /// Parts of the scores that are made at once: whole rows of all heads.
    pub(super) fn chunks(self, visible: &Visible) -> impl Iterator<Item = Chunk> {
        let row = (4 * self.heads * self.key_time).max(1);
        let whole = (row * self.time).max(1);
        let batches: Vec<Range<usize>> = chunks_of(self.batch, self.chunk_bytes / whole).collect();
        let are_any = self.time > 0 && self.key_time > 0;
        let batches = batches.into_iter().filter(move |_| are_any);
        batches.flat_map(move |batch| {
            let rows: Vec<Range<usize>> = match batch.len() {
                // It may be too large alone.
                1 => {
                    let of_window = visible.rows_of_window(self.chunk_bytes / (4 * self.heads));
                    let rows = of_window.unwrap_or((self.chunk_bytes / row).max(FEWEST_ROWS));
                    chunks_of(self.time, rows).collect()
                }
                _ => std::iter::once(0..self.time).collect(),
            };
            rows.into_iter().map(move |rows| Chunk {
                batch: batch.clone(),
                keys: visible.keys(batch.clone(), rows.clone()),
                is_last: rows.end == self.time,
                rows,
            })
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) batch: Range<usize>,
    pub(super) rows: Range<usize>,
    /// No other key has a weight.
    pub(super) keys: Range<usize>,
    /// The last rows of its part of the batch.
    pub(super) is_last: bool,
}

impl Chunk {
    /// A part of a tensor that broadcasts to `[batch, heads, time, key time]`.
    pub(super) fn part_of(&self, dims: [usize; 4]) -> [Range<usize>; 4] {
        let part = |dim: usize, range: &Range<usize>| match dims[dim] {
            1 => 0..1,
            _ => range.clone(),
        };
        [
            part(0, &self.batch),
            0..dims[1],
            part(2, &self.rows),
            part(3, &self.keys),
        ]
    }
}

//! A trace, divided into blocks: it may be cut between them.
//!
//! The time to try a cut at each operation grows faster than the trace. So only about as many
//! places are tried as a good plan needs, spread by the bytes that the tape saves between them.

use std::mem;

use crate::planner::operations::Trace;

/// The cuts of a forward pass into segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Index of the first operation of each segment; the first segment begins at 0.
    pub(super) starts: Vec<usize>,
    /// Index of the first operation whose activations are kept.
    pub(super) kept_from: usize,
    /// Estimated peak of the activations in the backward pass, in bytes.
    pub(super) bytes: u64,
}

/// The operations of a trace in blocks. Cuts are between blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Index of the first operation of each block; then the number of operations.
    bounds: Vec<usize>,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// Bytes of its results that it saves.
    saved: u64,
    /// Bytes of other blocks' results that this block saves first, by block.
    saved_of: Vec<(usize, u64)>,
    /// Bytes of its results that other blocks use.
    leaving: u64,
    /// Bytes of other blocks' results that this block uses last, by block.
    ended_of: Vec<(usize, u64)>,
}

/// The best cuts found up to some place, including a cut there.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// The bytes that cross the cuts.
    held: u64,
    /// The peak so far, in bytes.
    peak: u64,
    /// The place of the previous cut.
    from: usize,
}

impl Blocks {
    /// Divides a trace into about `most` blocks.
    pub(super) fn new(trace: &Trace, most: usize) -> Self {
        let bounds = bounds(trace, most);
        let mut blocks = vec![Block::default(); bounds.len() - 1];
        let mut block_of = vec![0; trace.len()];
        for (block, bound) in bounds.windows(2).enumerate() {
            block_of[bound[0]..bound[1]].fill(block);
        }
        // By the block that made them, so that those of one block are adjacent.
        for buffer in trace.buffers() {
            let made_in = block_of[buffer.made_by];
            match buffer.saved_by.map(|by| block_of[by]) {
                Some(saved_in) if saved_in == made_in => blocks[made_in].saved += buffer.bytes,
                Some(saved_in) => add(&mut blocks[saved_in].saved_of, made_in, buffer.bytes),
                None => {}
            }
            let ended_in = block_of[buffer.last_use];
            if ended_in != made_in {
                blocks[made_in].leaving += buffer.bytes;
                add(&mut blocks[ended_in].ended_of, made_in, buffer.bytes);
            }
        }
        Self { bounds, blocks }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The plan with the lowest peak, to within 0.2%. The operations after the last cut are kept.
    pub(super) fn lowest(&self) -> Cuts {
        // A limit that is far too low is quick to try: its segments are short.
        let (mut impossible, mut possible) = (0, 1);
        let mut plan = loop {
            match self.within(possible) {
                Some(plan) => break plan,
                None => (impossible, possible) = (possible, 2 * possible),
            }
        };
        while possible - impossible > 1 + possible / 512 {
            let middle = impossible + (possible - impossible) / 2;
            match self.within(middle) {
                Some(found) => (possible, plan) = (middle, found),
                None => impossible = middle,
            }
        }
        plan
    }

    /// The plan that holds the least, of those with a peak of at most `limit` bytes, if there are
    /// any. The operations after the last cut are kept.
    fn within(&self, limit: u64) -> Option<Cuts> {
        let reached = self.reach(limit);
        let end = reached.last().copied().flatten()?;
        let starts = self.starts(&reached, end.from);
        Some(Cuts {
            kept_from: starts.last().copied().unwrap_or(0),
            starts,
            bytes: end.peak,
        })
    }

    /// The plan that keeps the most operations, of those with a peak of at most `limit` bytes.
    pub(super) fn keep_most(&self, limit: u64) -> Option<Cuts> {
        let mut saved_from = vec![0; self.blocks.len() + 1];
        for (index, block) in self.blocks.iter().enumerate() {
            saved_from[index] += block.saved;
            for (made_in, bytes) in &block.saved_of {
                saved_from[*made_in] += bytes;
            }
        }
        for index in (0..self.blocks.len()).rev() {
            saved_from[index] += saved_from[index + 1];
        }
        let reached = self.reach(limit);
        let mut places = reached.iter().enumerate().take(self.blocks.len());
        places.find_map(|(place, known)| {
            let known = known.as_ref()?;
            let kept = known.held + saved_from[place];
            (kept <= limit).then(|| Cuts {
                kept_from: self.bounds[place],
                starts: self.starts(&reached, place),
                bytes: known.peak.max(kept),
            })
        })
    }

    /// By place, the cuts before it that hold the least, of those with a peak of at most `limit`
    /// bytes.
    ///
    /// The cost after a cut depends only on the bytes that the cuts before it hold. So this is a
    /// shortest path, whose nodes are visited in the order of places.
    fn reach(&self, limit: u64) -> Vec<Option<Reached>> {
        let mut reached: Vec<Option<Reached>> = vec![None; self.blocks.len() + 1];
        reached[0] = Some(Reached {
            held: 0,
            peak: 0,
            from: 0,
        });
        let mut furthest = 0;
        for from in 0..self.blocks.len() {
            let Some(Reached { held, peak, .. }) = reached[from] else {
                continue;
            };
            // A later cut that holds no more reaches as far, at no higher cost.
            let mut later = reached[from + 1..=furthest.max(from)].iter().flatten();
            if later.any(|later| later.held <= held) {
                continue;
            }
            // Both include the bytes held: those inside the segment so far, and those that cross
            // its end.
            let (mut inside, mut crossing) = (held, held);
            for (index, block) in self.blocks.iter().enumerate().skip(from) {
                inside += block.saved + since(&block.saved_of, from);
                if inside > limit {
                    break;
                }
                crossing += block.leaving;
                crossing -= since(&block.ended_of, from);
                let known = &mut reached[index + 1];
                if crossing <= limit && known.is_none_or(|known| crossing < known.held) {
                    *known = Some(Reached {
                        held: crossing,
                        peak: peak.max(inside),
                        from,
                    });
                    furthest = furthest.max(index + 1);
                }
            }
        }
        reached
    }

    /// The cuts up to a place that was reached, including that place.
    fn starts(&self, reached: &[Option<Reached>], place: usize) -> Vec<usize> {
        let mut cuts = Vec::new();
        let mut place = place;
        while place > 0
            && let Some(known) = &reached[place]
        {
            cuts.push(self.bounds[place]);
            place = known.from;
        }
        cuts.reverse();
        cuts
    }
}

/// The bytes made by this block and later ones. `of` is in the order of blocks.
fn since(of: &[(usize, u64)], from: usize) -> u64 {
    let since = of.iter().rev().take_while(|(made_in, _)| *made_in >= from);
    since.map(|(_, bytes)| bytes).sum()
}

/// Adds bytes to those of a block, which is the last one of the list or a new one.
fn add(of: &mut Vec<(usize, u64)>, block: usize, bytes: u64) {
    match of.last_mut() {
        Some((last, sum)) if *last == block => *sum += bytes,
        _ => of.push((block, bytes)),
    }
}

/// The bounds of about `most` blocks: all places there are; or, where the tape has saved a further
/// part of all, that place of the part where the least crosses.
fn bounds(trace: &Trace, most: usize) -> Vec<usize> {
    let count = trace.len();
    if count <= most {
        return (0..=count).collect();
    }
    let mut crossing = vec![0; count];
    let mut ended = vec![0; count];
    let mut saved = vec![0; count];
    for buffer in trace.buffers() {
        crossing[buffer.made_by] += buffer.bytes;
        ended[buffer.last_use] += buffer.bytes;
        if let Some(by) = buffer.saved_by {
            saved[by] += buffer.bytes;
        }
    }
    let all: u64 = saved.iter().sum();
    let mut bounds = vec![0];
    let (mut before, mut width) = (0, 0);
    let (mut part, mut narrowest) = (0, None);
    for at in 0..count - 1 {
        before += saved[at];
        width += crossing[at];
        width -= ended[at];
        let part_here = u128::from(before) * most as u128 / u128::from(all + 1);
        if part_here != mem::replace(&mut part, part_here) {
            bounds.extend(narrowest.take().map(|(place, _)| place));
        }
        if narrowest.is_none_or(|(_, least)| width < least) {
            narrowest = Some((at + 1, width));
        }
    }
    bounds.extend(narrowest.map(|(place, _)| place));
    bounds.push(count);
    bounds
}

//! Where to cut a forward pass into segments.
//!
//! Two things are in memory when backward runs a segment: what crosses the cuts up to its beginning,
//! and what the tape saves of its own operations. More cuts make the second smaller and the first
//! larger. Of all sets of cuts at the places where little crosses, [`plan`] takes one whose highest
//! sum is lowest.

use crate::planner::saves::Saves;

/// A forward pass, operation by operation.
#[derive(Debug, Default)]
pub(super) struct Trace {
    operations: Vec<Operation>,
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Operation {
    name: &'static str,
    saves: Saves,
    /// The buffers of its operands.
    operands: Vec<usize>,
    /// The bytes of its operands beside parameters, if it has a parameter.
    parameter: Option<u64>,
}

/// The memory of a result, shared by its views.
#[derive(Debug)]
struct Buffer {
    bytes: u64,
    made_by: usize,
    /// Indices of the first and the last operation that reads it.
    last_use: usize,
    /// By which operation the tape has to save it first.
    saved_by: Option<usize>,
}

impl Trace {
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.operations.iter().map(|of| of.name).collect()
    }

    /// Notes an operation on results of earlier ones.
    pub(super) fn operation(
        &mut self,
        name: &'static str,
        operands: Vec<usize>,
        parameter: Option<u64>,
    ) {
        let index = self.operations.len();
        let saves = Saves::of(name);
        for operand in &operands {
            let buffer = &mut self.buffers[*operand];
            buffer.last_use = index;
            if saves.saves_operands() && buffer.saved_by.is_none() {
                buffer.saved_by = Some(index);
            }
        }
        self.operations.push(Operation {
            name,
            saves,
            operands,
            parameter,
        });
    }

    /// The operations with parameters from this one on, and the bytes of their other operands.
    pub(super) fn with_parameters(&self, from: usize) -> Vec<(&'static str, u64)> {
        let operations = self.operations.iter().skip(from.min(self.len()));
        operations
            .filter_map(|of| Some((of.name, of.parameter?)))
            .collect()
    }

    /// Notes a result of the last operation. Returns its buffer.
    pub(super) fn result(&mut self, bytes: u64) -> usize {
        let made_by = self.operations.len() - 1;
        let operation = &self.operations[made_by];
        if operation.saves == Saves::View
            && let Some(buffer) = operation.operands.first()
        {
            return *buffer;
        }
        let indices = operation.saves.indices(bytes);
        if indices > 0 {
            self.buffers.push(Buffer {
                bytes: indices,
                made_by,
                last_use: made_by,
                saved_by: Some(made_by),
            });
        }
        self.buffers.push(Buffer {
            bytes,
            made_by,
            last_use: made_by,
            saved_by: None,
        });
        self.buffers.len() - 1
    }

    /// The bytes of all results of the first operations.
    pub(super) fn bytes(&self, operations: usize) -> u64 {
        let buffers = self.buffers.iter();
        let buffers = buffers.take_while(|buffer| buffer.made_by < operations);
        buffers.map(|buffer| buffer.bytes).sum()
    }
}

/// How to run a forward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The operations that segments begin with; the first begins at 0.
    pub(super) cuts: Vec<usize>,
    /// From this operation on, activations are kept.
    pub(super) kept_from: usize,
    /// The bytes of activations at the worst moment of the backward pass, as estimated.
    pub(super) bytes: u64,
}

/// The buffers of a trace by what happens to them at each operation.
struct Events {
    /// Saved first by the operation: when it was made, and its bytes.
    saved: Vec<Vec<(usize, u64)>>,
    /// Used last by it.
    ended: Vec<Vec<(usize, u64)>>,
    made: Vec<u64>,
}

impl Events {
    fn new(trace: &Trace) -> Self {
        let count = trace.operations.len();
        let mut events = Self {
            saved: vec![Vec::new(); count],
            ended: vec![Vec::new(); count],
            made: vec![0; count],
        };
        for buffer in &trace.buffers {
            let entry = (buffer.made_by, buffer.bytes);
            events.made[buffer.made_by] += buffer.bytes;
            events.ended[buffer.last_use].push(entry);
            if let Some(by) = buffer.saved_by {
                events.saved[by].push(entry);
            }
        }
        events
    }

    /// Walks on from a cut, operation by operation: calls `visit` with the end of the segment so far,
    /// the bytes its operations save and those that newly cross a cut there, for as long as it
    /// returns `true`.
    fn walk(&self, from: usize, mut visit: impl FnMut(usize, u64, u64) -> bool) {
        let (mut saved, mut crossing) = (0, 0);
        let since = |events: &[(usize, u64)]| -> u64 {
            let events = events.iter().filter(|(made_by, _)| *made_by >= from);
            events.map(|(_, bytes)| bytes).sum()
        };
        for at in from..self.made.len() {
            saved += since(&self.saved[at]);
            crossing += self.made[at];
            crossing -= since(&self.ended[at]);
            if !visit(at + 1, saved, crossing) {
                return;
            }
        }
    }

    /// The places where less crosses than on both sides, the end among them.
    fn candidates(&self) -> Vec<usize> {
        /// More would take long to try and gain little.
        const MOST: usize = 400;

        let count = self.made.len();
        let mut widths = Vec::with_capacity(count);
        self.walk(0, |_, _, crossing| {
            widths.push(crossing);
            true
        });
        let is_low = |at: &usize| {
            let at = *at;
            let before = at.checked_sub(1).map_or(u64::MAX, |before| widths[before]);
            let after = widths.get(at + 1).copied().unwrap_or(u64::MAX);
            widths[at] <= before && widths[at] < after
        };
        let mut low: Vec<_> = (0..count).filter(is_low).collect();
        low.sort_by_key(|at| widths[*at]);
        low.truncate(MOST);
        let mut candidates: Vec<_> = low.into_iter().map(|at| at + 1).collect();
        candidates.push(count);
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }
}

/// Plans a forward pass like this one: with the lowest peak; or, within `budget` bytes, with as few
/// operations recomputed as the rule allows that those after some cut are kept.
///
/// The operations after the last cut are kept where they run backward first, if `is_last`. Otherwise the
/// backward pass would hold them while it runs what comes after.
pub(super) fn plan(trace: &Trace, budget: Option<u64>, is_last: bool) -> Plan {
    let events = Events::new(trace);
    let candidates = events.candidates();
    let most = trace.bytes(trace.len());
    // The lowest peak that some cuts have, by halving.
    let (mut impossible, mut possible) = (0, most.max(1));
    while possible - impossible > most / 256 + 1 {
        let middle = impossible + (possible - impossible) / 2;
        match cut(&events, &candidates, middle) {
            Some(_) => possible = middle,
            None => impossible = middle,
        }
    }
    let cuts = cut(&events, &candidates, possible).unwrap_or_default();
    let mut plan = Plan {
        kept_from: match is_last {
            true => cuts.last().copied().unwrap_or(0),
            false => trace.len(),
        },
        cuts,
        bytes: possible,
    };
    if let Some(budget) = budget {
        keep_more(&events, &mut plan, budget);
    }
    plan
}

/// The cuts with which at most `limit` bytes are there at any moment, if there are such; of these,
/// those that hold the least.
fn cut(events: &Events, candidates: &[usize], limit: u64) -> Option<Vec<usize>> {
    let count = events.made.len();
    // By candidate: the bytes that cross cuts up to it, and the cut before.
    let mut best: Vec<Option<(u64, usize)>> = vec![None; candidates.len()];
    let place = |at: usize| candidates.binary_search(&at).ok();
    let mut begins: Vec<(usize, u64)> = vec![(0, 0)];
    let mut next = 0;
    loop {
        for (from, held) in begins.drain(..) {
            events.walk(from, |end, saved, crossing| {
                if held + saved > limit {
                    return false;
                }
                if let Some(place) = place(end) {
                    let held = held + if end == count { 0 } else { crossing };
                    let known = &mut best[place];
                    if held <= limit && known.is_none_or(|(other, _)| held < other) {
                        *known = Some((held, from));
                    }
                }
                true
            });
        }
        // Candidates are settled in their order: all that leads to one comes before it.
        while next < candidates.len() && best[next].is_none() {
            next += 1;
        }
        let (held, from) = *best.get(next)?.as_ref()?;
        if candidates[next] == count {
            let mut cuts = Vec::new();
            let mut from = from;
            while from > 0 {
                cuts.push(from);
                from = best[place(from)?]?.1;
            }
            cuts.reverse();
            return Some(cuts);
        }
        begins.push((candidates[next], held));
        next += 1;
    }
}

/// Moves the place from which activations are kept towards the beginning.
fn keep_more(events: &Events, plan: &mut Plan, budget: u64) {
    let count = events.made.len();
    let mut held = 0;
    let bounds: Vec<_> = [0].into_iter().chain(plan.cuts.iter().copied()).collect();
    for (index, from) in bounds.iter().enumerate() {
        let mut total = None;
        let end = bounds.get(index + 1).copied().unwrap_or(count);
        let mut crossing_at_end = 0;
        events.walk(*from, |at, saved, crossing| {
            if at == end {
                crossing_at_end = crossing;
            }
            if at == count {
                total = Some(held + saved);
            }
            true
        });
        if total.is_some_and(|total| total <= budget) {
            plan.kept_from = *from;
            plan.cuts.retain(|cut| cut <= from);
            plan.bytes = plan.bytes.max(total.unwrap_or(0));
            return;
        }
        held += crossing_at_end;
    }
}

//! Forward passes that are cut into segments automatically.
//!
//! The first forward pass is cut as it comes, wherever the operations since the last cut have made
//! many times the bytes that would cross another one. At its end the whole pass is known, and
//! [planned](crate::planner::plan): later passes follow the plan as long as they do the same. Two
//! kinds of passes that take turns have a plan each.

use std::{
    any::Any,
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::planner::{
    operations::Trace,
    plan::{self, Cuts},
};
use crate::{subgraph, util::lock::lock};

/// Choice of the activations that are kept, and those that backward computes again.
///
/// Given to [`ReleaseOptimizer::with_recompute`](crate::ReleaseOptimizer::with_recompute). Model
/// code stays as it is: armed forward passes are recorded, and cut into segments where few bytes
/// are alive, as between the blocks of a transformer. A state carried over from step to step has to
/// be detached. [`checkpoint`](crate::checkpoint) chooses the segments by hand.
///
/// Weights are those of plain Burn, bit for bit, but for one case: if `attention`, `ctc_loss` or a
/// custom operation uses a recomputed tensor, and others do, too, three times or more in all, the
/// last bits of its gradient may differ (`docs/burn-0.21/reference.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recompute {
    /// All activations are kept.
    #[default]
    None,
    /// The lowest peak at no more than one extra forward pass.
    Automatic,
    /// As many activations are kept as, by the estimate, fit into a number of bytes: the late ones
    /// are kept, the early ones recomputed. If no cuts fit, the same as `Automatic`.
    Budget(u64),
}

impl Recompute {
    /// Returns the policy if it can be followed.
    ///
    /// # Panics
    ///
    /// If it is a budget of 0 bytes, in which nothing can be kept.
    pub fn checked(self) -> Self {
        assert!(
            self != Self::Budget(0),
            "a budget of 0 bytes keeps no activation, and backward needs some; take \
             `Recompute::Automatic`, which keeps the least"
        );
        self
    }
}

/// A segment without a plan is cut once it has this many times the bytes that would cross the cut.
const SEGMENT_OVER_CUT: u64 = 8;

fn next_arming() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);

    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Cuts the forward passes of armed parameters into segments.
pub(crate) struct Tracer {
    policy: Recompute,
    state: Mutex<State>,
}

struct State {
    learned: Option<Learned>,
    /// The plan before it. With batch norm, the pass after a validation is another one: Burn has
    /// updated the running statistics.
    other: Option<Learned>,
    mode: Mode,
    /// Unique among the armings of all tracers: a tensor of another arming is not part of this
    /// trace.
    arming: u64,
    trace: Trace,
    /// Trace length at the last planning.
    learned_from: usize,
    /// The operations with parameters whose activations were kept, and the bytes of their other
    /// operands.
    kept: usize,
    kept_bytes: u64,
    /// Whether too many activations were kept, so that the trace has gaps.
    has_gaps: bool,
    /// The current segment, and the bytes that were made in it.
    segment: u64,
    made: u64,
    /// Segment or subgraph that its operations share, if there is one; the type depends on the
    /// backend.
    shared: Option<Arc<dyn Any + Send + Sync>>,
    /// Bytes of the recorded results that are still held.
    alive: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The pass follows the plan. Holds the index of the next cut.
    Following(usize),
    /// There is no plan: the pass is cut by the bytes alive.
    Free,
    /// The remaining activations are kept.
    Keeping,
}

/// A planned forward pass.
#[derive(Debug)]
struct Learned {
    names: Vec<&'static str>,
    cuts: Cuts,
    /// Bytes of all results before the first that is kept.
    bytes: u64,
    /// The operations with parameters whose activations are kept, and the bytes of their other
    /// operands: other kept operations are not traced.
    kept: Vec<(&'static str, u64)>,
    /// The sum of these bytes.
    seen: u64,
}

impl Learned {
    /// Whether a pass is kept as a whole and would still fit into a budget, judged by the bytes
    /// seen.
    fn keeps_all_within(&self, budget: u64, seen: u64) -> bool {
        let estimate = u128::from(self.cuts.bytes) * u128::from(seen);
        self.cuts.kept_from == 0 && estimate <= u128::from(budget) * u128::from(self.seen)
    }
}

/// The segment or subgraph that an operation belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracePosition {
    /// Number of the segment or subgraph.
    number: u64,
    arming: u64,
    /// Whether its activations are kept.
    pub(crate) is_kept: bool,
}

/// The highest numbers of the segments and subgraphs that the operands of an operation are in; 0 if
/// there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Highest {
    pub(crate) segment: u64,
    pub(crate) subgraph: u64,
}

/// A result in the trace, counted as alive until it is dropped.
#[derive(Debug)]
pub(crate) struct Traced {
    arming: u64,
    buffer: usize,
    bytes: u64,
    alive: Arc<AtomicU64>,
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.alive.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Tracer {
    /// A tracer for this policy; `None` for `Recompute::None`.
    pub(crate) fn new(policy: Recompute) -> Option<Arc<Self>> {
        if policy == Recompute::None {
            return None;
        }
        let state = State {
            learned: None,
            other: None,
            mode: Mode::Free,
            arming: next_arming(),
            trace: Trace::default(),
            learned_from: 0,
            kept: 0,
            kept_bytes: 0,
            has_gaps: false,
            segment: subgraph::next_number(),
            made: 0,
            shared: None,
            alive: Arc::default(),
        };
        Some(Arc::new(Self {
            policy,
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn policy(&self) -> Recompute {
        self.policy
    }

    fn budget(&self) -> Option<u64> {
        match self.policy {
            Recompute::Budget(bytes) => Some(bytes),
            Recompute::None | Recompute::Automatic => None,
        }
    }

    /// The peak of the planned backward pass, in bytes.
    pub(crate) fn planned_bytes(&self) -> Option<u64> {
        let state = self.state();
        state.learned.as_ref().map(|learned| learned.cuts.bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Begins the forward passes of an arming.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        state.arming = next_arming();
        state.trace = Trace::default();
        state.learned_from = 0;
        state.kept = 0;
        state.kept_bytes = 0;
        state.has_gaps = false;
        state.cut();
        state.mode = match &state.learned {
            Some(_) => Mode::Following(0),
            None => Mode::Free,
        };
    }

    /// Notes an operation. If an operand is a parameter, `parameter` is the bytes of the others.
    /// `highest` has the numbers of the segments and subgraphs of the operands. Returns where the
    /// operation belongs; `None` if the forward pass needs no cuts.
    pub(crate) fn operation<'a>(
        &self,
        name: &'static str,
        parameter: Option<u64>,
        highest: Highest,
        operands: impl Iterator<Item = &'a Traced>,
    ) -> Option<TracePosition> {
        let mut state = self.state();
        let at = state.trace.len();
        let is_planned = |learned: &Learned| learned.names.get(at) == Some(&name);
        if matches!(state.mode, Mode::Following(_))
            && !state.learned.as_ref().is_some_and(is_planned)
        {
            state.follow_other(name);
        }
        if let (Mode::Following(next), Some(learned)) = (state.mode, &state.learned) {
            let is_grown = || state.trace.bytes(at) > learned.bytes + learned.bytes / 8;
            let is_cut = learned.cuts.starts.get(next) == Some(&at);
            if !is_planned(learned) {
                state.mode = Mode::Free;
            } else if at == learned.cuts.kept_from {
                // With a larger batch, other segments may have to be kept.
                state.mode = if is_grown() {
                    Mode::Free
                } else {
                    Mode::Keeping
                };
                state.cut();
            } else if is_cut {
                state.mode = Mode::Following(next + 1);
                state.cut();
            }
        }
        if let (Mode::Keeping, Some(bytes)) = (state.mode, parameter) {
            state.keep(name, bytes, self.budget());
        }
        // Another optimizer's tracer has cut since: a tensor that depends on a segment has a higher
        // number.
        let is_below = highest.segment.max(highest.subgraph) > state.segment;
        // An operand has left the current segment, and cannot come back. A kept subgraph can go on.
        let has_left = highest.subgraph == state.segment && state.mode != Mode::Keeping;
        if is_below || has_left {
            state.cut();
        }
        match state.mode {
            Mode::Keeping => {
                return Some(TracePosition {
                    number: state.segment,
                    arming: state.arming,
                    is_kept: true,
                });
            }
            Mode::Following(_) => {}
            Mode::Free => {
                let alive = state.alive.load(Ordering::Relaxed);
                if state.made > 0 && state.made >= SEGMENT_OVER_CUT * alive {
                    state.cut();
                }
            }
        }
        let arming = state.arming;
        let operands = operands.filter(|operand| operand.arming == arming);
        let operands = operands.map(|operand| operand.buffer).collect();
        state.trace.operation(name, operands, parameter);
        Some(TracePosition {
            number: state.segment,
            arming,
            is_kept: false,
        })
    }

    /// Segment or subgraph that the operations at this position share. The first one `make`s it.
    pub(crate) fn shared<S: Any + Send + Sync>(
        &self,
        position: TracePosition,
        make: impl FnOnce(u64) -> Arc<S>,
    ) -> Arc<S> {
        let mut state = self.state();
        if state.segment != position.number {
            // Another thread has cut in between, and others may have the segment of that number.
            return make(subgraph::next_number());
        }
        let known = state.shared.clone();
        let known = known.and_then(|shared| shared.downcast().ok());
        known.unwrap_or_else(|| {
            let shared = make(position.number);
            state.shared = Some(shared.clone());
            shared
        })
    }

    /// Notes a result of the operation last noted.
    pub(crate) fn result(&self, position: TracePosition, bytes: u64) -> Traced {
        let mut state = self.state();
        // With several threads, the trace may mix up operations. That changes the plan, which
        // changes no result: what is kept and what is recomputed have the same values.
        let buffer = match state.arming == position.arming && state.trace.len() > 0 {
            true => state.trace.result(bytes),
            false => 0,
        };
        state.made += bytes;
        state.alive.fetch_add(bytes, Ordering::Relaxed);
        Traced {
            arming: position.arming,
            buffer,
            bytes,
            alive: state.alive.clone(),
        }
    }

    /// Learns from a forward pass that is about to run backward. Unless `is_last`, something comes
    /// after it, such as a scope. Only the first of several calls counts.
    pub(crate) fn learn(&self, is_last: bool) {
        let mut state = self.state();
        let length = state.trace.len();
        if state.mode != Mode::Free
            || state.has_gaps
            || length == mem::replace(&mut state.learned_from, length)
        {
            return;
        }
        let cuts = plan::plan(&state.trace, self.budget(), is_last);
        let kept = state.trace.with_parameters(cuts.kept_from);
        let learned = Learned {
            names: state.trace.names(),
            bytes: state.trace.bytes(cuts.kept_from),
            seen: kept.iter().map(|(_, bytes)| bytes).sum(),
            kept,
            cuts,
        };
        state.other = state.learned.replace(learned);
    }
}

impl State {
    /// Follows the other plan, if its pass began as this one did and goes on with this operation.
    fn follow_other(&mut self, name: &'static str) {
        let at = self.trace.len();
        let other = self.other.take_if(|other| {
            other.cuts.kept_from >= at
                && other.names.get(at) == Some(&name)
                && self.trace.names() == other.names[..at]
        });
        let Some(other) = other else {
            return;
        };
        let cuts = other.cuts.starts.partition_point(|start| *start < at);
        self.mode = Mode::Following(cuts);
        self.other = self.learned.replace(other);
    }

    /// Notes an operation whose activations are to be kept. If it differs from the planned one, or
    /// is larger, the rest of the pass is cut as it comes, and the plan is forgotten; unless the
    /// whole pass is kept, and still fits into the budget.
    fn keep(&mut self, name: &'static str, bytes: u64, budget: Option<u64>) {
        self.kept_bytes += bytes;
        let fits = self.learned.as_ref().is_some_and(|learned| {
            let planned = learned.kept.get(self.kept);
            planned.is_some_and(|(planned, most)| *planned == name && bytes <= most + most / 8)
                || budget.is_some_and(|budget| learned.keeps_all_within(budget, self.kept_bytes))
        });
        if !fits {
            self.mode = Mode::Free;
            self.learned = None;
            self.has_gaps = self.kept > 0 || self.trace.len() > 0;
            self.cut();
        }
        self.kept += 1;
    }

    fn cut(&mut self) {
        self.segment = subgraph::next_number();
        self.made = 0;
        self.shared = None;
    }
}

//! Nodes of any order, which place a hook on the tape.
//!
//! A node of burn-autodiff has an *order*, one more than the highest of its parents, and backward
//! runs nodes by order, highest first. Parents that need no gradient count for the order, but are
//! not on the tape. So a chain of identities without gradients gives a node of any order.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::{DispatchAutodiffContext, DispatchTensor};
use burn::tensor::GradientCheckpointingStrategy;

use super::node::{Zeros, constant, guard, node};
use crate::backend::plain;
use crate::lock::lock;

/// Nodes without gradients, by order. A node belongs to no backend.
struct Rungs {
    /// Each with the pass that has used it last.
    nodes: BTreeMap<usize, (DispatchTensor, usize)>,
    /// The pass in which those were dropped that no pass uses any more.
    swept: usize,
}

static RUNGS: Mutex<Rungs> = Mutex::new(Rungs {
    nodes: BTreeMap::new(),
    swept: 0,
});

/// How many passes have begun.
static PASSES: AtomicUsize = AtomicUsize::new(0);

/// A rung is kept for so many passes without a use, so that models may take turns. Every backward
/// pass visits all that are kept, plain Burn's as well.
const KEPT: usize = 8;

/// Begins a pass over an armed model.
pub(crate) fn begin_pass() {
    PASSES.fetch_add(1, Ordering::Relaxed);
}

/// Returns a node of this order, and keeps it. A new one has a number on the device of `like`.
pub(crate) fn rung(order: usize, like: &DispatchTensor) -> NodeGuard {
    let Rungs { nodes, swept } = &mut *lock(&RUNGS);
    let pass = PASSES.load(Ordering::Relaxed);
    if pass != *swept {
        *swept = pass;
        nodes.retain(|_, (_, used)| *used + KEPT > pass);
    }
    if let Some((rung, used)) = nodes.get_mut(&order) {
        *used = pass;
        return guard(rung);
    }
    let autodiff = DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::default());
    let (mut at, mut rung) = match nodes.range(..order).next_back() {
        Some((at, (rung, _))) => (*at, rung.clone()),
        None => (
            0,
            constant(Zeros::like(&plain(like.clone())).one(), autodiff),
        ),
    };
    while at < order {
        let below = guard(&rung);
        rung = node(plain(rung), [below], autodiff, |_| {
            unreachable!("a rung needs no gradient")
        });
        at += 1;
    }
    let guard = guard(&rung);
    nodes.insert(order, (rung, pass));
    guard
}

/// An upper bound of every order that exists.
///
/// An order is at most one above another, and each node takes a new id from one counter. So no
/// order is higher than an earlier bound plus the ids made since by all threads.
#[derive(Debug)]
pub(crate) struct Clock {
    bound: usize,
    seen: u64,
}

/// Orders of the clock are multiples of this number, because each backward visits every rung that
/// is kept.
const STRIDE: usize = 8;

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            bound: 0,
            seen: NodeId::new().value,
        }
    }

    /// Returns an order no lower than that of any node. The caller makes a node above it.
    pub(crate) fn now(&mut self) -> usize {
        let made = (NodeId::new().value - self.seen) as usize;
        let order = (self.bound + made).next_multiple_of(STRIDE);
        // The hook is one order above.
        self.bound = order + 1;
        self.skip();
        order
    }

    /// Leaves out the nodes that were made since the last call.
    pub(crate) fn skip(&mut self) {
        self.seen = NodeId::new().value;
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::Tensor;
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_rung_that_no_pass_uses_goes() {
        let like = Tensor::<1>::zeros([1], &Device::flex()).into_dispatch();
        let is_there = || lock(&RUNGS).nodes.contains_key(&500);
        drop(rung(500, &like));
        for pass in 0..2 * KEPT {
            begin_pass();
            drop(rung(1, &like));
            if pass == KEPT / 2 {
                assert!(is_there());
                drop(rung(500, &like));
            }
        }
        assert!(!is_there());
    }
}

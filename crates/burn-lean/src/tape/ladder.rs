//! Nodes of any order, which place a hook on the tape.
//!
//! A node of burn-autodiff has an *order*, one more than the highest of its parents, and backward
//! runs nodes by order, highest first. Parents that need no gradient count for the order, but are
//! not on the tape. So a chain of identities without gradients gives a node of any order.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::tensor::{FloatDType, Shape};

use crate::backend::{Inner, Rungs, Tracked};

#[derive(Debug)]
struct Rung;

impl<B: Inner> Backward<B, 1> for Rung {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {
        unreachable!("a rung needs no gradient")
    }
}

/// How many passes have begun.
static PASSES: AtomicUsize = AtomicUsize::new(0);

/// A rung is kept for so many passes without a use, so that models may take turns. Every backward
/// pass visits all that are kept, plain Burn's as well.
const KEPT: usize = 8;

/// Begins a pass over an armed model.
pub(crate) fn begin_pass() {
    PASSES.fetch_add(1, Ordering::Relaxed);
}

/// Returns a node of this order. Nodes are kept: each backend has its own ladder of them.
pub(crate) fn rung<B: Inner>(order: usize, device: &B::Device) -> NodeGuard {
    let Rungs { nodes, swept } = &mut *B::rungs();
    let pass = PASSES.load(Ordering::Relaxed);
    if pass != *swept {
        *swept = pass;
        nodes.retain(|_, (_, used)| *used + KEPT > pass);
    }
    if let Some((rung, used)) = nodes.get_mut(&order) {
        *used = pass;
        return rung.node();
    }
    let (mut at, mut rung) = match nodes.range(..order).next_back() {
        Some((at, (rung, _))) => (*at, rung.clone()),
        None => {
            let scalar = B::float_zeros(Shape::new([1]), device, FloatDType::F32);
            (0, <Tracked<B>>::new(scalar))
        }
    };
    while at < order {
        let (primitive, below) = rung.into_parts();
        rung = match <Rung as Backward<B, 1>>::prepare::<NoCheckpointing>(Rung, [below])
            .compute_bound()
            .stateful()
        {
            OpsKind::UnTracked(prep) => prep.finish(primitive),
            OpsKind::Tracked(_) => unreachable!("a rung needs no gradient"),
        };
        at += 1;
    }
    let guard = rung.node();
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
    use burn::backend::Flex;
    use burn::backend::flex::FlexDevice;

    use super::*;

    #[test]
    fn a_rung_that_no_pass_uses_goes() {
        let is_there = || Flex::rungs().nodes.contains_key(&500);
        drop(rung::<Flex>(500, &FlexDevice));
        for pass in 0..2 * KEPT {
            begin_pass();
            drop(rung::<Flex>(1, &FlexDevice));
            if pass == KEPT / 2 {
                assert!(is_there());
                drop(rung::<Flex>(500, &FlexDevice));
            }
        }
        assert!(!is_there());
    }
}

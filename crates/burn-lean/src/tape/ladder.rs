//! Nodes that are there for their order alone.
//!
//! Backward runs nodes by descending order, and Burn gives a node one more than the highest of its
//! parents, also of those that need no gradient. So a node over a rung runs as early as one over an
//! operation of that order.

use std::sync::Mutex;

use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::{DispatchAutodiffContext, DispatchTensor};

use super::node::{constant, guard, node};
use crate::lock::lock;

/// How much higher the order of a rung is than that of the one below: more than the operations between two
/// uses of parameters, as a rule. The nodes between are dropped.
const ORDERS_BETWEEN_RUNGS: usize = 32;

/// From the lowest on. Of the process, as Burn's orders are, and made once: they are in no graph.
static RUNGS: Mutex<Vec<DispatchTensor>> = Mutex::new(Vec::new());

/// A rung as the parent of a node. `scalar` is any number on any backend.
pub(crate) fn rung(
    number: usize,
    scalar: impl Fn() -> DispatchTensor,
    autodiff: DispatchAutodiffContext,
) -> NodeGuard {
    let mut rungs = lock(&RUNGS);
    while rungs.len() <= number {
        let rung = match rungs.last() {
            None => constant(scalar(), autodiff),
            Some(last) => (0..ORDERS_BETWEEN_RUNGS).fold(last.clone(), |below, _| {
                node(scalar(), [guard(&below)], autodiff, |_| {})
            }),
        };
        rungs.push(rung);
    }
    guard(&rungs[number])
}

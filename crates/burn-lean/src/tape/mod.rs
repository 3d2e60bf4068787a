//! Nodes that are added to Burn's tape.

mod ladder;
mod node;
mod sums;

pub(crate) use ladder::rung;
#[cfg(feature = "operations")]
pub(crate) use node::unused;
pub(crate) use node::{
    Reached, Zeros, constant, gathered, guard, is_tracked, leaf, node, node_of, register,
};
pub(crate) use sums::take_sum;

//! Nodes that are added to Burn's tape.

mod ladder;
mod leaf_hook;
mod node;
mod orders;
mod placeholder;
mod sums;

pub(crate) use ladder::{Clock, begin_pass, rung};
pub(crate) use leaf_hook::{ARMING_HAS_ENDED, HookOwner, leaf_hook};
pub(crate) use node::{
    OnTape, Reached, Zeros, constant, gathered, guard, is_tracked, leaf, node, node_of, register,
};
pub(crate) use orders::Reached as ReachedOrders;
pub(crate) use placeholder::{
    Holds, is_computed_from_placeholder, is_left, is_placeholder, is_replaced, placeholder_element,
};
pub(crate) use sums::take_sum;

//! Nodes that are added to Burn's tape.

mod ladder;
mod leaf_hook;
mod orders;
mod placeholder;
mod sums;

pub(crate) use ladder::{Clock, begin_pass, rung};
pub(crate) use leaf_hook::{ARMING_HAS_ENDED, HookOwner, leaf_hook, negative_zeros};
pub(crate) use orders::Reached;
#[cfg(feature = "train")]
pub(crate) use placeholder::ElementOf;
pub(crate) use placeholder::{
    is_computed_from_placeholder, is_left, is_placeholder, is_replaced, leaf_of,
    placeholder_element,
};
pub(crate) use sums::take_sum;

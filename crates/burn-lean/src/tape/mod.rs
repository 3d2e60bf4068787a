//! What is added to Burn's tape.

mod ladder;
mod orders;
mod placeholder;
mod tap;

pub(crate) use ladder::{Clock, Ladder};
pub(crate) use orders::Reached;
#[cfg(feature = "train")]
pub(crate) use placeholder::ElementOf;
pub(crate) use placeholder::{is_computed_from_placeholder, is_placeholder, placeholder_element};
pub(crate) use tap::{TapOwner, negative_zeros, tap};

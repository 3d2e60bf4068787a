//! A backward pass that is watched: gradients come to those who await them as soon as they are
//! complete.

mod awaiting;
mod counts;
mod watched;

pub(crate) use awaiting::{
    Frame, Owner, Readiness, TakeGradient, is_awaited, reach, refuse, take_gradient, take_partial,
};
pub(crate) use watched::{backward, watch};

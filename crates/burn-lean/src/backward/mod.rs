//! A backward pass that is watched: gradients come to those who await them as soon as they are
//! complete.

mod awaiting;
mod counts;
mod derived;

pub(crate) use awaiting::{
    Frame, Owner, Readiness, TakeGradient, backward, is_awaited, reach, refuse, take_gradient,
    take_partial, watch,
};
pub use derived::derived;

//! Recomputed activations: parts of a forward pass that backward replays instead of keeping what
//! they computed.
//!
//! Inside a [scope](scope) an operation runs untracked and is [recorded](record): its function and
//! its operands, but not its value. Only what cannot be computed again is kept by value: tensors
//! from outside, random numbers, data. The recorded operations between two cuts are a *slice*.
//!
//! A result that leaves its slice becomes a leaf of a new [region](crate::origins::Region) of the
//! tape. A backward pass runs the regions from the last to the first, one after the other: Burn's
//! engine cannot run one backward pass inside another. Between two of them the slice is
//! [replayed](replay) in a region of its own.

mod cuts;
pub(crate) mod mask;
pub(crate) mod order;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod route;
mod saves;
pub(crate) mod scope;
pub(crate) mod trace;

pub use scope::checkpoint;
pub use trace::Recompute;

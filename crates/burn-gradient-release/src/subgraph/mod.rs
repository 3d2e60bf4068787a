//! Parts of a forward pass that have a tape of their own, and the order in which plain Burn would
//! add up what comes from several of them.
//!
//! Inside a [scope](crate::tensor::scope) an operation runs untracked and is
//! [recorded](crate::tensor::record): its function and its operands, but not its value. Only what
//! cannot be computed again is kept by value: tensors from outside, random numbers, data. The
//! recorded operations between two cuts are a *segment*.
//!
//! A result that leaves its segment becomes a leaf of a new [subgraph](origins::Subgraph). A
//! backward pass runs the subgraphs from the last to the first, one after the other: Burn's engine
//! cannot run one backward pass inside another. Between two of them the segment is
//! [replayed](crate::backward::replay) in a subgraph of its own.

pub(crate) mod order;
pub(crate) mod origins;

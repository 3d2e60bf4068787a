//! An operation on release tensors as one on Burn's tape: operands in, result out.

pub(crate) mod custom;
pub(crate) mod operands;
pub(crate) mod raise;
pub(crate) mod random;

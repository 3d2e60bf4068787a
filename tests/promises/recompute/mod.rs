//! Recomputed activations: the same weights, and the memory they save.

mod equality;
mod memory;
mod scopes;

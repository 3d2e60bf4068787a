//! Recomputed activations: the same weights, and the memory they save.

mod equality;
mod flat_linear;
mod memory;
mod scopes;

//! Recomputed activations: the same weights, and the memory they save.

mod burn_transformers;
mod carried_state;
mod changing;
mod deep;
mod dropout;
pub(crate) mod equality;
mod flat_linear;
mod last_bits;
mod memory;
mod saves;
mod scopes;
mod threads;
mod two_optimizers;

use crate::Inner;

/// The same operations on the same numbers, in the same order.
const TOLERANCE: f32 = 0.0;

//! Recomputed activations: the same weights, and the memory they save.

mod burn_transformers;
mod carried_state;
mod changing;
mod dropout;
pub(crate) mod equality;
mod flat_linear;
mod last_bits;
mod memory;
mod reduction;
mod saves;
mod scopes;
mod two_optimizers;

use crate::Inner;
use crate::harness::prelude::*;

/// The same operations on the same numbers, in the same order.
const TOLERANCE: f32 = 0.0;

/// Momentum, as it is the sum of all gradients, to the last bit.
fn recipe() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

/// That optimizer with release, recomputing.
fn recomputing<M: AutodiffModule<R>>(recompute: Recompute) -> ReleaseOptimizer<Sgd<Flex>, M, R> {
    let optim = recipe().init::<R, M>().with_gradient_release();
    optim.with_recompute(recompute)
}

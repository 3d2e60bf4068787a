//! The same weights as plain Burn on this backend, after each step.

use super::{Inner, TOLERANCE};
use crate::equivalence::{clipped_sgd, near_numbers};
use crate::harness::prelude::*;

/// Two optimizers, one of which clips.
pub(super) fn same<S: Scenario, C: CheckpointStrategy>() {
    turn::take::<Inner>();
    let adam = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    near_numbers::<S, _, Inner, C>(&adam, TOLERANCE);
    near_numbers::<S, _, Inner, C>(&clipped_sgd(), TOLERANCE);
}

#[test]
fn mlp() {
    same::<Mlp, NoCheckpointing>();
}

//! The same weights as plain Burn on this backend, after each of twenty steps.

use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, SgdConfig};

use super::{Inner, TOLERANCE};
use crate::equivalence::near_numbers;
use crate::harness::models::{Mlp, Scenario};
use crate::harness::turn;

/// Two optimizers, one of which clips.
pub(super) fn same<S: Scenario, C: CheckpointStrategy>() {
    turn::take::<Inner>();
    let decay = || Some(WeightDecayConfig::new(0.01));
    let adam = AdamConfig::new().with_weight_decay(decay());
    near_numbers::<S, _, Inner, C>(&adam, TOLERANCE);
    let momentum = MomentumConfig::new().with_nesterov(true);
    let sgd = SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(decay())
        .with_gradient_clipping(Some(GradientClippingConfig::Norm(0.01)));
    near_numbers::<S, _, Inner, C>(&sgd, TOLERANCE);
}

#[test]
fn mlp() {
    same::<Mlp, NoCheckpointing>();
}

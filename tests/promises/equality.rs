//! The same weights as plain Burn on this backend, after each of twenty steps.

use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::grad_clipping::GradientClippingConfig;
use burn::nn::DropoutConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::checkpoint;

use super::{Inner, TOLERANCE};
use crate::equivalence::near_numbers;
use crate::harness::models::*;
use crate::harness::{Plain, Release, noise, turn};
use crate::recompute;

/// Two optimizers, one of which clips.
fn same<S: Scenario, C: CheckpointStrategy>() {
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

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn mlp_recomputing() {
    same::<Mlp, BalancedCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn cnn() {
    same::<Cnn, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn transformer() {
    same::<Transformer, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn transformer_recomputing() {
    same::<Transformer, BalancedCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn tied() {
    same::<Tied, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn views() {
    same::<Views, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn lstm() {
    same::<Recurrent, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn weight_norm() {
    same::<WeightNorm, NoCheckpointing>();
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn transformer_with_activations_recomputed() {
    turn::take::<Inner>();
    recompute::equality::near_numbers::<Transformer, Inner, NoCheckpointing>(TOLERANCE);
}

/// Dropout's masks, packed to bits on the device and back.
#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn dropout_recomputed() {
    fn gradient<B: AutodiffBackend>() -> Vec<f32> {
        let device = Default::default();
        B::seed(&device, 7);
        let x = noise::<B, 2>(0, [40, 30], &device).require_grad();
        let dropout = DropoutConfig::new(0.3).init();
        let y = checkpoint(|| dropout.forward(x.clone().exp()));
        let grads = y.square().mean().backward();
        let gradient = x.grad(&grads).expect("it is required");
        gradient.into_data().to_vec().expect("floats")
    }

    turn::take::<Inner>();
    let plain = gradient::<Plain<Inner>>();
    assert!(plain.contains(&0.0) && plain.iter().any(|gradient| *gradient != 0.0));
    for (given, expected) in gradient::<Release<Inner>>().iter().zip(&plain) {
        assert!(
            (given - expected).abs() <= TOLERANCE,
            "{given}, not {expected}"
        );
    }
}

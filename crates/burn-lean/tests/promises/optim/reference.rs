//! The optimizers against those of other packages: the values that the ones for Burn 0.21 are held
//! to.

#[path = "../../../../burn-lean-optim/tests/lean/reference/data.rs"]
mod data;

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, LionConfig, Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_lean::optim::{
    AccumulateInMoments, AdaLomoConfig, AdamW, CameConfig, InOnePass, MomentDecay, RAdamConfig,
    StableAdamWConfig,
};

use super::harness::Run;
use crate::harness::devices;
use data::{LR, MICRO_BATCHES};

fn pattern<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(data::pattern(seed, shape), shape), device)
}

fn assert_reference(name: &str, optimizer: impl Optimizer) {
    for device in devices() {
        let device = device.inner();
        let mut matrix = Run::new(optimizer.clone(), pattern(0, [7, 5], &device));
        let mut vector = Run::new(optimizer.clone(), pattern(1, [5], &device));
        let mut deep = Run::new(optimizer.clone(), pattern(2, [2, 3, 4], &device));
        data::assert_reference(name, |seed, scale| {
            matrix.step(LR, pattern(seed, [7, 5], &device).mul_scalar(scale));
            vector.step(LR, pattern(seed + 1, [5], &device).mul_scalar(scale));
            deep.step(LR, pattern(seed + 2, [2, 3, 4], &device).mul_scalar(scale));
            [matrix.weights(), vector.weights(), deep.weights()].concat()
        });
    }
}

macro_rules! tests {
    ($($name:ident: $optimizer:expr,)*) => {$(
        #[test]
        fn $name() {
            assert_reference(stringify!($name), $optimizer);
        }
    )*};
}

tests! {
    lion: LionConfig::new().with_weight_decay(0.1).in_one_pass(),
    radam: RAdamConfig::new().with_beta_2(0.99).with_weight_decay(0.1).build(),
    stable_adamw: StableAdamWConfig::new().with_weight_decay(0.1).build(),
    adamw_decoupled: adamw(0.01).with_decoupled_lr(0.02),
    adafactor: AdaLomoConfig::new().with_weight_decay(0.1).build(),
    came: CameConfig::new().with_weight_decay(0.1).build(),
    adama: adamw(0.1).accumulating(MICRO_BATCHES, MomentDecay::EachStep).unwrap(),
    accumulating_adam: AdamConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_adamw: adamw(0.1)
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_stable_adamw: StableAdamWConfig::new()
        .with_weight_decay(0.1)
        .build()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_lion: LionConfig::new()
        .with_weight_decay(0.1)
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_sgd: SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
}

fn adamw(weight_decay: f32) -> AdamW {
    AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(weight_decay)
        .in_one_pass()
}

//! The optimizers that Burn lacks, against those of other packages, by `make.py` in this folder.

mod data;

use burn::{
    backend::{Flex, NdArray},
    optim::{
        AdamConfig, AdamWConfig, SgdConfig, SimpleOptimizer, decay::WeightDecayConfig,
        momentum::MomentumConfig,
    },
    tensor::{Tensor, TensorData, backend::Backend},
};
use burn_lean_optim::{
    AccumulateInMoments, AdaLomoConfig, AdafactorConfig, AdamW, CameConfig, InOnePass, LionConfig,
    MomentDecay, RAdamConfig, StableAdamWConfig,
};

use crate::harness::Run;
use data::{LR, MICRO_BATCHES};

fn pattern<B: Backend, const D: usize>(seed: usize, shape: [usize; D]) -> Tensor<B, D> {
    let data = TensorData::new(data::pattern(seed, shape), shape);
    Tensor::from_data(data, &Default::default())
}

fn assert_reference<B: Backend>(name: &str, optimizer: impl SimpleOptimizer<B>) {
    let mut matrix = Run::new(optimizer.clone(), pattern::<B, 2>(0, [7, 5]));
    let mut vector = Run::new(optimizer.clone(), pattern::<B, 1>(1, [5]));
    let mut deep = Run::new(optimizer, pattern::<B, 3>(2, [2, 3, 4]));
    data::assert_reference(name, |seed, scale| {
        matrix.step(LR, pattern(seed, [7, 5]).mul_scalar(scale));
        vector.step(LR, pattern(seed + 1, [5]).mul_scalar(scale));
        deep.step(LR, pattern(seed + 2, [2, 3, 4]).mul_scalar(scale));
        [matrix.weights(), vector.weights(), deep.weights()].concat()
    });
}

macro_rules! tests {
    ($($name:ident: $config:expr,)*) => {$(
        #[test]
        fn $name() {
            assert_reference::<Flex>(stringify!($name), $config);
            assert_reference::<NdArray>(stringify!($name), $config);
        }
    )*};
}

tests! {
    lion: LionConfig::new().with_weight_decay(0.1).build(),
    radam: RAdamConfig::new().with_beta_2(0.99).with_weight_decay(0.1).build(),
    stable_adamw: StableAdamWConfig::new().with_weight_decay(0.1).build(),
    adamw_decoupled: AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(0.01)
        .in_one_pass()
        .with_decoupled_lr(0.02),
    adafactor: AdafactorConfig::new().with_weight_decay(0.1).build(),
    adafactor_momentum: AdafactorConfig::new()
        .with_scale_parameter(false)
        .with_beta_1(Some(0.9))
        .build(),
    came: CameConfig::new().with_weight_decay(0.1).build(),
    adama: adamw().accumulating(MICRO_BATCHES, MomentDecay::EachStep).unwrap(),
    accumulating_adam: AdamConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_adamw: adamw().accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch).unwrap(),
    accumulating_stable_adamw: StableAdamWConfig::new()
        .with_weight_decay(0.1)
        .build()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_lion: LionConfig::new()
        .with_weight_decay(0.1)
        .build()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
    accumulating_sgd: SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachMicroBatch)
        .unwrap(),
}

/// Its rule is that of Adafactor.
#[test]
fn adalomo() {
    let config = AdaLomoConfig::new().with_weight_decay(0.1);
    assert_reference::<Flex>("adafactor", config.build());
    assert_reference::<NdArray>("adafactor", config.build());
}

fn adamw() -> AdamW {
    AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(0.1)
        .in_one_pass()
}

//! The optimizers that Burn lacks, against those of other packages, by `make.py` in this folder.

use burn::{
    backend::{Flex, NdArray},
    optim::{
        AdamConfig, AdamWConfig, LearningRate, SgdConfig, SimpleOptimizer,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{Tensor, TensorData, backend::Backend},
};
use burn_lean_optim::{
    AccumulateInMoments, AdafactorConfig, AdamW, CameConfig, InOnePass, LionConfig, MomentDecay,
    RAdamConfig, StableAdamWConfig,
};

use crate::harness::Run;

const WEIGHTS: &str = include_str!("weights.csv");

const STEPS: usize = 30;

const MICRO_BATCHES: usize = 3;

const LR: LearningRate = 0.01;

/// The reference has 64 bits for a number and these have 32, 6e-8 of a number near one, in a dozen operations a
/// step: a few of these add up over thirty steps.
const TOLERANCE: f64 = 3e-6;

/// Numbers in [-1, 1) that 32 bits hold exactly: the formula of `make.py`.
fn pattern<B: Backend, const D: usize>(seed: usize, shape: [usize; D]) -> Tensor<B, D> {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|place| (37 * place + 11 * seed + place * place * (seed % 5 + 1)) % 64)
        .map(|value| value as f32 / 32.0 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

fn assert_reference<B: Backend>(name: &str, optimizer: impl SimpleOptimizer<B>) {
    let mut matrix = Run::new(optimizer.clone(), pattern::<B, 2>(0, [7, 5]));
    let mut vector = Run::new(optimizer.clone(), pattern::<B, 1>(1, [5]));
    let mut deep = Run::new(optimizer, pattern::<B, 3>(2, [2, 3, 4]));
    let lines = WEIGHTS
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(','));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), STEPS, "{name} is in the reference");
    for (step, line) in lines.into_iter().enumerate() {
        let scale = if step % 7 == 6 { 8.0 } else { 0.25 };
        let seed = 10 + 3 * step;
        matrix.step(LR, pattern(seed, [7, 5]).mul_scalar(scale));
        vector.step(LR, pattern(seed + 1, [5]).mul_scalar(scale));
        deep.step(LR, pattern(seed + 2, [2, 3, 4]).mul_scalar(scale));
        let weights = [matrix.weights(), vector.weights(), deep.weights()].concat();
        let wanted = line
            .split(',')
            .skip(1)
            .map(|number| number.parse::<f64>().unwrap());
        for (place, (weight, wanted)) in weights.iter().zip(wanted).enumerate() {
            let error = (f64::from(*weight) - wanted).abs();
            assert!(
                error < TOLERANCE,
                "{name}, step {step}, weight {place}: {weight} instead of {wanted}"
            );
        }
    }
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

fn adamw() -> AdamW {
    AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(0.1)
        .in_one_pass()
}

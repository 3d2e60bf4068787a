//! The optimizers against those of other packages: the weights that `make.py` in `reference` has
//! written.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn::tensor::{DType, TensorData};

use super::run::Run;
use super::side::{
    AccumulateInMoments, AdaLomoConfig, AdamW, CameConfig, Device, InOnePass, LionConfig,
    MomentDecay, Optimizer, RAdamConfig, StableAdamWConfig, Tensor, lion, places,
};

const WEIGHTS: &str = include_str!("reference/weights.csv");

const STEPS: usize = 30;

const MICRO_BATCHES: usize = 3;

const LR: f64 = 0.01;

/// The reference has 64 bits for a number and these have 32, 6e-8 of a number near one, in a dozen
/// operations a step: a few of these add up over thirty steps.
const IN_32_BITS: (DType, f64) = (DType::F32, 3e-6);

/// Half of the last digit that the reference is written with: one number rounded to 32 bits in a step
/// is too much.
const IN_64_BITS: (DType, f64) = (DType::F64, 5.001e-9);

/// Numbers in [-1, 1) that 32 bits hold exactly: the formula of `make.py`.
fn pattern<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|place| (37 * place + 11 * seed + place * place * (seed % 5 + 1)) % 64)
        .map(|value| value as f32 / 32.0 - 1.0)
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

pub(crate) fn assert_reference(name: &str, optimizer: impl Optimizer) {
    assert_reference_in(IN_32_BITS, name, optimizer);
}

/// Compares a matrix, a vector and a tensor of three dimensions after each step.
fn assert_reference_in((dtype, most): (DType, f64), name: &str, optimizer: impl Optimizer) {
    let lines = WEIGHTS
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(','));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), STEPS, "{name} is in the reference");
    for device in places() {
        let mut matrix = Run::new(optimizer.clone(), pattern(0, [7, 5], &device).cast(dtype));
        let mut vector = Run::new(optimizer.clone(), pattern(1, [5], &device).cast(dtype));
        let mut deep = Run::new(
            optimizer.clone(),
            pattern(2, [2, 3, 4], &device).cast(dtype),
        );
        for (time, line) in lines.iter().enumerate() {
            let seed = 10 + 3 * time;
            // Every seventh gradient is a spike.
            let scale = if time % 7 == 6 { 8.0 } else { 0.25 };
            let grad = pattern(seed, [7, 5], &device).mul_scalar(scale);
            matrix.step(LR, grad.cast(dtype));
            let grad = pattern(seed + 1, [5], &device).mul_scalar(scale);
            vector.step(LR, grad.cast(dtype));
            let grad = pattern(seed + 2, [2, 3, 4], &device).mul_scalar(scale);
            deep.step(LR, grad.cast(dtype));
            let weights = [
                exact_numbers(matrix.weight()),
                exact_numbers(vector.weight()),
                exact_numbers(deep.weight()),
            ];
            let weights = weights.concat();
            let wanted = line.split(',').skip(1).map(|number| number.parse::<f64>());
            let wanted: Vec<f64> = wanted.collect::<Result<_, _>>().unwrap();
            assert_eq!(weights.len(), wanted.len(), "{name}");
            for (place, (weight, wanted)) in weights.iter().zip(wanted).enumerate() {
                let error = (weight - wanted).abs();
                assert!(
                    error < most,
                    "{name} in {dtype:?} on {device:?}, step {time}, weight {place}: {weight} instead of {wanted}"
                );
            }
        }
    }
}

fn exact_numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

fn adamw(weight_decay: f32) -> AdamW {
    AdamWConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(weight_decay)
        .in_one_pass()
}

#[test]
fn optimizers_are_those_of_other_packages() {
    assert_reference("lion", lion(&LionConfig::new().with_weight_decay(0.1)));
    assert_reference("adamw_decoupled", adamw(0.01).with_decoupled_lr(0.02));
    // The settings of those above are Burn's, in 32 bits.
    for in_type in [IN_32_BITS, IN_64_BITS] {
        let radam = RAdamConfig::new().with_beta_2(0.99).with_weight_decay(0.1);
        let adalomo = AdaLomoConfig::new().with_weight_decay(0.1);
        let came = CameConfig::new().with_weight_decay(0.1);
        assert_reference_in(in_type, "radam", radam.build());
        assert_reference_in(in_type, "stable_adamw", stable_adamw());
        // Its rule is that of Adafactor.
        assert_reference_in(in_type, "adafactor", adalomo.build());
        assert_reference_in(in_type, "came", came.build());
    }
}

fn stable_adamw() -> impl AccumulateInMoments + Optimizer {
    StableAdamWConfig::new().with_weight_decay(0.1).build()
}

#[test]
fn optimizers_that_accumulate_are_those_of_other_packages() {
    fn check(name: &str, optimizer: impl AccumulateInMoments + Optimizer, decay: MomentDecay) {
        assert_reference(name, optimizer.accumulating(MICRO_BATCHES, decay).unwrap());
    }
    let adam = AdamConfig::new()
        .with_beta_2(0.99)
        .with_epsilon(1e-6)
        .with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    let momentum = MomentumConfig::new().with_dampening(0.0);
    let sgd = SgdConfig::new().with_momentum(Some(momentum));
    let lion = lion(&LionConfig::new().with_weight_decay(0.1));
    let each = MomentDecay::EachMicroBatch;
    check("adama", adamw(0.1), MomentDecay::EachStep);
    check("accumulating_adam", adam.in_one_pass(), each);
    check("accumulating_adamw", adamw(0.1), each);
    check("accumulating_stable_adamw", stable_adamw(), each);
    check("accumulating_lion", lion, each);
    check("accumulating_sgd", sgd.in_one_pass(), each);
}

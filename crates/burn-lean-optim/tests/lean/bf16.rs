//! Weights in bf16.

use burn::{
    backend::Flex,
    optim::{AdamWConfig, SgdConfig, SimpleOptimizer},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{DType, Tensor},
};
use burn_lean_optim::{
    AdafactorConfig, Bf16Weights, EightBitMoments, InOnePass, Kahan, Lean, Stochastic,
};

use crate::harness::{Noise, Run};

const SHAPE: [usize; 2] = [64, 100];

/// Descends to targets at a small rate, and returns the mean distance from them.
fn distance<O: SimpleOptimizer<Flex>>(optimizer: O, dtype: DType) -> f32 {
    let mut noise = Noise(1);
    let target: Tensor<Flex, 2> = noise.tensor(SHAPE, |noise| noise.number() + 2.0);
    let start: Tensor<Flex, 2> = noise.tensor(SHAPE, |noise| noise.number() + 2.0);
    let mut run = Run::new(optimizer, start.cast(dtype));
    for _ in 0..300 {
        let weight = run.weight.clone().unwrap();
        run.step(5e-3, weight - target.clone().cast(dtype));
    }
    let weight = run.weight.unwrap().cast(DType::F32);
    (weight - target).abs().mean().into_scalar()
}

#[test]
fn what_plain_bf16_cannot_learn_both_roundings_learn() {
    let sgd = || SgdConfig::new().in_one_pass();
    let exact = distance(sgd(), DType::F32);
    let plain = distance(SgdConfig::new().build(), DType::BF16);
    let stochastic = distance(Bf16Weights::new(sgd(), Stochastic { seed: 1 }), DType::BF16);
    let kahan = distance(Bf16Weights::new(sgd(), Kahan), DType::BF16);
    // A step is a 200th of what is left of at most two, and a weight of two has steps of a 64th.
    assert!(plain > 2.0 * exact, "plain {plain}, exact {exact}");
    for (name, distance) in [("stochastic", stochastic), ("Kahan", kahan)] {
        // Off by what bf16 cannot hold: a 256th of two.
        assert!(
            (distance - exact).abs() < 2.0 / 256.0,
            "{name} {distance}, exact {exact}"
        );
    }
}

#[test]
fn any_optimizer_steps_in_32_bits_inside() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let short = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let model = burn::nn::LinearConfig::new(2, 2).init::<Flex>(&Default::default());
    let exact = distance(adamw(), DType::F32);
    for (name, distance) in [
        (
            "adamw",
            distance(Bf16Weights::new(adamw(), Kahan), DType::BF16),
        ),
        (
            "8 bits",
            distance(
                Bf16Weights::new(adamw().with_8_bit_moments(&model), Kahan),
                DType::BF16,
            ),
        ),
        (
            "bf16 moments",
            distance(
                Bf16Weights::new(short.with_bf16_moments(), Stochastic { seed: 3 }),
                DType::BF16,
            ),
        ),
        (
            "burn's",
            distance(
                Bf16Weights::new(AdamWConfig::new().build(), Kahan),
                DType::BF16,
            ),
        ),
    ] {
        assert!(
            (distance - exact).abs() < 0.02,
            "{name} {distance}, exact {exact}"
        );
    }
    let adafactor = AdafactorConfig::new().build();
    let exact = distance(adafactor.clone(), DType::F32);
    let rounded = distance(Bf16Weights::new(adafactor, Kahan), DType::BF16);
    assert!((rounded - exact).abs() < 0.02, "{rounded}, exact {exact}");
}

#[test]
fn chance_is_the_same_in_every_run_and_after_a_resume() {
    let optimizer = |seed| Bf16Weights::new(AdamWConfig::new().in_one_pass(), Stochastic { seed });
    let weights_after = |seed, resumed: bool| {
        let mut noise = Noise(5);
        let weight: Tensor<Flex, 2> = noise.tensor(SHAPE, Noise::number);
        let mut run = Run::new(optimizer(seed), weight.cast(DType::BF16));
        for step in 0..6 {
            if resumed && step == 3 {
                let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
                let bytes = recorder.record(run.state.take().unwrap(), ()).unwrap();
                run.state = Some(recorder.load(bytes, &Default::default()).unwrap());
            }
            let grad: Tensor<Flex, 2> = noise.tensor(SHAPE, Noise::number);
            run.step(1e-3, grad.cast(DType::BF16));
        }
        run.weights()
    };
    assert_eq!(weights_after(1, false), weights_after(1, false));
    assert_eq!(weights_after(1, false), weights_after(1, true));
    assert_ne!(weights_after(1, false), weights_after(2, false));
}

#[test]
#[should_panic(expected = "this one is in F32")]
fn weights_in_32_bits_are_refused() {
    let optimizer = Bf16Weights::new(AdamWConfig::new().in_one_pass(), Kahan);
    let mut noise = Noise(1);
    let mut run: Run<_, Flex, 2> = Run::new(optimizer, noise.tensor(SHAPE, Noise::number));
    run.step(0.01, noise.tensor(SHAPE, Noise::number));
}

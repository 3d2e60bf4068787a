//! Weights in bf16.

use burn::{
    backend::Flex,
    optim::{AdamWConfig, SgdConfig, SimpleOptimizer},
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{DType, Tensor, TensorData},
};
use burn_lean_optim::{
    AdafactorConfig, Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights, Rounding,
    Stochastic,
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
    let master = distance(Bf16Weights::new(sgd(), MasterWeights), DType::BF16);
    // A step is a 200th of what is left of at most two, and a weight of two has steps of a 64th.
    assert!(plain > 2.0 * exact, "plain {plain}, exact {exact}");
    for (name, distance) in [("stochastic", stochastic), ("master weights", master)] {
        // Off by what bf16 cannot hold: a 256th of two.
        assert!(
            (distance - exact).abs() < 2.0 / 256.0,
            "{name} {distance}, exact {exact}"
        );
    }
}

/// Numbers whose steps bf16 cannot tell apart, zeros, and one that becomes infinite in bf16.
fn start(count: usize) -> Vec<f32> {
    let mut noise = Noise(9);
    let number = |place: usize, noise: &mut Noise| match place {
        3 => 0.0,
        4 => -0.0,
        5 => 1e-40,
        6 => 3.3e38,
        _ => noise.number() * 10f32.powi(place as i32 % 7 - 3),
    };
    (0..count).map(|place| number(place, &mut noise)).collect()
}

/// The master weights are those of the optimizer with weights in 32 bits, of any size, and saved in
/// between.
#[test]
fn master_weights_are_those_of_32_bits() {
    fn trajectories<O: SimpleOptimizer<Flex> + 'static>(optimizer: O, count: usize) {
        let tensor = |numbers: Vec<f32>| {
            Tensor::<Flex, 1>::from_data(TensorData::new(numbers, [count]), &Default::default())
                .cast(DType::BF16)
        };
        let weight = tensor(start(count));
        let mut exact = Run::new(optimizer.clone(), weight.clone().cast(DType::F32));
        let mut rounded = Run::new(Bf16Weights::new(optimizer, MasterWeights), weight);
        let mut noise = Noise(3);
        for step in 0..12 {
            // The last of these move no weight of one by as much as 2^-18.
            let lr = [1e-2, 1e-4, 1e-7][step % 3];
            let grad = tensor((0..count).map(|_| noise.number()).collect());
            exact.step(lr, grad.clone().cast(DType::F32));
            rounded.step(lr, grad);
            if step == 5 {
                let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
                let saved = recorder.load(rounded.saved(), &Default::default());
                rounded.state = Some(saved.unwrap());
            }
            let low = rounded.state.clone().unwrap().low;
            let masters = MasterWeights.widen::<1>(rounded.weight.clone().unwrap(), low);
            let bits =
                |weights: Vec<f32>| -> Vec<u32> { weights.into_iter().map(f32::to_bits).collect() };
            let masters = bits(masters.into_data().to_vec().unwrap());
            assert_eq!(masters, bits(exact.weights()), "{count}, step {step}");
            for (rounded, exact) in rounded.weights().into_iter().zip(exact.weights()) {
                let nearest = burn::tensor::bf16::from_f32(exact).to_f32();
                let is_as_near = (nearest - exact).abs() == (rounded - exact).abs();
                assert!(nearest == rounded || is_as_near, "{exact:e} to {rounded:e}");
            }
        }
    }
    for count in [0, 1, 2, 7, 64, 16_385, 40_001] {
        trajectories(SgdConfig::new().in_one_pass(), count);
        trajectories(AdamWConfig::new().in_one_pass(), count);
        trajectories(AdamWConfig::new().build(), count);
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
            distance(Bf16Weights::new(adamw(), MasterWeights), DType::BF16),
        ),
        (
            "8 bits",
            distance(
                Bf16Weights::new(adamw().with_8_bit_moments(&model), MasterWeights),
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
                Bf16Weights::new(AdamWConfig::new().build(), MasterWeights),
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
    let rounded = distance(Bf16Weights::new(adafactor, MasterWeights), DType::BF16);
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
    let optimizer = Bf16Weights::new(AdamWConfig::new().in_one_pass(), MasterWeights);
    let mut noise = Noise(1);
    let mut run: Run<_, Flex, 2> = Run::new(optimizer, noise.tensor(SHAPE, Noise::number));
    run.step(0.01, noise.tensor(SHAPE, Noise::number));
}

//! Weights in bf16.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_lean::WithGradientRelease;
use burn_lean::optim::{
    AdaLomoConfig, AdamWState, Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights,
    Rounding, Stochastic,
};

use super::harness::{Noise, Run};
use crate::harness::{flex, numbers, plain_run, release_run, seeded};

const SHAPE: [usize; 2] = [64, 100];

/// Descends to targets at a small rate, and returns the mean distance from them.
fn distance(optimizer: impl Optimizer, dtype: DType) -> f32 {
    let mut noise = Noise(1);
    let target = noise.numbers(SHAPE) + 2.0;
    let start = noise.numbers(SHAPE) + 2.0;
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
    fn trajectories<O: Optimizer>(optimizer: O, count: usize, device: &Device) {
        let tensor = |numbers: Vec<f32>| {
            Tensor::<1>::from_data(TensorData::new(numbers, [count]), device).cast(DType::BF16)
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
                let saved = rounded.saved();
                rounded.load(&saved);
            }
            let low = rounded.state.clone().unwrap().low;
            let masters = MasterWeights.widen(rounded.weight.clone().unwrap(), low);
            let bits =
                |weights: Vec<f32>| -> Vec<u32> { weights.into_iter().map(f32::to_bits).collect() };
            let masters = bits(masters.try_into_vec_as().unwrap());
            assert_eq!(masters, bits(exact.weights()), "{count}, step {step}");
            for (rounded, exact) in rounded.weights().into_iter().zip(exact.weights()) {
                let nearest = burn::tensor::bf16::from_f32(exact).to_f32();
                let is_as_near = (nearest - exact).abs() == (rounded - exact).abs();
                assert!(nearest == rounded || is_as_near, "{exact:e} to {rounded:e}");
            }
        }
    }
    for count in [0, 1, 2, 7, 64, 16_385, 40_001] {
        // In place, and by way of the host, as on a device that is none of those with a pass.
        for device in [Device::flex(), Device::flex().autodiff()] {
            trajectories(SgdConfig::new().in_one_pass(), count, &device);
            trajectories(AdamWConfig::new().in_one_pass(), count, &device);
            trajectories(AdamWConfig::new().build(), count, &device);
        }
    }
}

/// With 0.999 it would stand still at what one large gradient has made of it.
#[test]
fn a_second_moment_in_bf16_falls_again() {
    let optimizer = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let mut run = Run::new(optimizer.with_bf16_moments(), Noise(1).numbers(SHAPE));
    let square = |run: &Run<_, 2>| -> Vec<f32> {
        let state: &AdamWState<2> = run.state.as_ref().expect("stepped");
        let square = state.momentum.moment_2.to_tensor().cast(DType::F32);
        square.try_into_vec_as().unwrap()
    };
    let spike = Noise(2).numbers(SHAPE);
    run.step(1e-3, spike.clone());
    let before = square(&run);
    for _ in 0..500 {
        run.step(1e-3, spike.zeros_like());
    }
    // A hundredth less is one or two of the steps that bf16 has there: a 256th to a 128th each.
    let slowest = (1.0f32 - 1.0 / 256.0).powi(500);
    for (before, after) in before.iter().zip(square(&run)) {
        assert!(after <= before * slowest, "{before} to {after}");
    }
}

#[test]
fn any_optimizer_steps_in_32_bits_inside() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let model: Linear = LinearConfig::new(2, 2).init(&Device::flex());
    let exact = distance(adamw(), DType::F32);
    let eight_bit = Bf16Weights::new(adamw().with_8_bit_moments(&model), MasterWeights);
    let short = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let bf16 = Bf16Weights::new(short.with_bf16_moments(), Stochastic { seed: 3 });
    for (name, distance) in [
        (
            "adamw",
            distance(Bf16Weights::new(adamw(), MasterWeights), DType::BF16),
        ),
        ("8 bits", distance(eight_bit, DType::BF16)),
        ("bf16 moments", distance(bf16, DType::BF16)),
        (
            "Burn's",
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
    let adalomo = AdaLomoConfig::new().build();
    let exact = distance(adalomo.clone(), DType::F32);
    let rounded = distance(Bf16Weights::new(adalomo, MasterWeights), DType::BF16);
    assert!((rounded - exact).abs() < 0.02, "{rounded}, exact {exact}");
}

#[test]
fn chance_is_the_same_in_every_run_and_after_a_resume() {
    fn weights_after(optimizer: impl Optimizer, is_resumed: bool) -> Vec<f32> {
        let mut noise = Noise(5);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE).cast(DType::BF16));
        for step in 0..6 {
            if is_resumed && step == 3 {
                let saved = run.saved();
                run.load(&saved);
            }
            run.step(1e-3, noise.numbers(SHAPE).cast(DType::BF16));
        }
        run.weights()
    }
    let adamw = || AdamWConfig::new().in_one_pass();
    let stochastic = |seed| Bf16Weights::new(adamw(), Stochastic { seed });
    let weights = weights_after(stochastic(1), false);
    assert_eq!(weights, weights_after(stochastic(1), false));
    assert_eq!(weights, weights_after(stochastic(1), true));
    assert_ne!(weights, weights_after(stochastic(2), false));
    let master = || Bf16Weights::new(adamw(), MasterWeights);
    assert_eq!(
        weights_after(master(), false),
        weights_after(master(), true)
    );
    let short = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let bf16 = || Bf16Weights::new(short().with_bf16_moments(), MasterWeights);
    assert_eq!(weights_after(bf16(), false), weights_after(bf16(), true));
}

#[test]
#[should_panic(expected = "this one is in F32")]
fn weights_in_32_bits_are_refused() {
    let optimizer = Bf16Weights::new(AdamWConfig::new().in_one_pass(), MasterWeights);
    let mut noise = Noise(1);
    let mut run = Run::new(optimizer, noise.numbers(SHAPE));
    run.step(0.01, noise.numbers(SHAPE));
}

/// A model in bf16, whose first layer takes activations in 32 bits.
fn model() -> Linear {
    struct ToBf16;
    impl ModuleMapper for ToBf16 {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|weight| weight.cast(DType::BF16).detach().require_grad())
        }
    }
    let model = seeded(&flex(), |device| LinearConfig::new(80, 60).init(device));
    model.map(&mut ToBf16)
}

fn loss(model: &Linear, step: usize) -> Tensor<1> {
    let x: Tensor<2> = numbers([4, 80], step, &flex()).cast(DType::BF16);
    model.forward(x).cast(DType::F32).square().mean()
}

#[test]
fn with_gradient_release_the_weights_are_those_of_the_plain_loop() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let optimizers: [&dyn Fn() -> ModuleOptimizer; 2] = [
        &|| Bf16Weights::new(adamw(), Stochastic { seed: 7 }).init(),
        &|| Bf16Weights::new(adamw(), MasterWeights).init(),
    ];
    for optim in optimizers {
        let (_, expected) = plain_run(model(), &mut optim(), 0..8, loss);
        let mut release = optim().with_gradient_release();
        release_run(model(), &mut release, 0..8, loss, &expected, "bf16");
    }
}

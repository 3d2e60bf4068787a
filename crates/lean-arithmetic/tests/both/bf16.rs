//! Weights in bf16.

use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, TensorData};

use super::noise::Noise;
use super::run::{Run, numbers};
use super::side::{
    AccumulateInMoments, AdaLomoConfig, AdamW, AdamWState, Bf16Weights, EightBitMoments, InOnePass,
    Lean, MasterWeights, MomentDecay, Optimizer, Rounding, Stochastic, Tensor,
    model_without_embeddings, places_with_bf16,
};

const SHAPE: [usize; 2] = [64, 100];

fn adamw() -> AdamW {
    AdamWConfig::new().in_one_pass()
}

/// With moments in bf16.
fn bf16_adamw() -> AdamW {
    let adamw = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    adamw.with_bf16_moments()
}

/// Descends to targets at a small rate, and returns the mean distance from them.
fn distance(optimizer: impl Optimizer, dtype: DType) -> f32 {
    let mut noise = Noise(1);
    let target = noise.numbers(SHAPE) + 2.0;
    let start = noise.numbers(SHAPE) + 2.0;
    let mut run = Run::new(optimizer, start.cast(dtype));
    for _ in 0..300 {
        let weight = run.weight().clone();
        run.step(5e-3, weight - target.clone().cast(dtype));
    }
    let weight = run.weight().clone().cast(DType::F32);
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
        let off = (distance - exact).abs();
        assert!(off < 2.0 / 256.0, "{name} {distance}, exact {exact}");
    }
}

#[test]
fn any_optimizer_steps_in_32_bits_inside() {
    fn check(name: &str, exact: impl Optimizer, inside: impl Optimizer) {
        let exact = distance(exact, DType::F32);
        let found = distance(inside, DType::BF16);
        let off = (found - exact).abs();
        assert!(off < 0.02, "{name} {found}, exact {exact}");
    }
    let in_8_bits = adamw().with_8_bit_moments(&model_without_embeddings());
    let in_bf16 = Bf16Weights::new(bf16_adamw(), Stochastic { seed: 3 });
    let adalomo = AdaLomoConfig::new().build();
    let master_weights = MasterWeights;
    check(
        "8 bits",
        adamw(),
        Bf16Weights::new(in_8_bits, master_weights),
    );
    check("bf16 moments", adamw(), in_bf16);
    check(
        "adalomo",
        adalomo.clone(),
        Bf16Weights::new(adalomo, master_weights),
    );
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
    fn check(name: &str, optimizer: impl Optimizer, count: usize) {
        for device in places_with_bf16() {
            let tensor = |numbers: Vec<f32>| {
                let data = TensorData::new(numbers, [count]);
                let tensor: Tensor<1> = Tensor::from_data(data, &device);
                tensor.cast(DType::BF16)
            };
            let weight = tensor(start(count));
            let mut exact = Run::new(optimizer.clone(), weight.clone().cast(DType::F32));
            let mut rounded = Run::new(Bf16Weights::new(optimizer.clone(), MasterWeights), weight);
            let mut noise = Noise(3);
            for step in 0..12 {
                // The last of these move no weight of one by as much as 2^-18.
                let lr = [1e-2, 1e-4, 1e-7][step % 3];
                let grad = tensor((0..count).map(|_| noise.number()).collect());
                exact.step(lr, grad.clone().cast(DType::F32));
                rounded.step(lr, grad);
                if step == 5 {
                    rounded.load(&rounded.saved());
                }
                let low = rounded.state.clone().unwrap().low;
                let masters = MasterWeights.widen(rounded.weight().clone(), low);
                let masters: Vec<u32> = numbers(&masters).iter().map(|x| x.to_bits()).collect();
                assert_eq!(masters, exact.bits(), "{name}, {count}, step {step}");
                for (rounded, exact) in rounded.weights().into_iter().zip(exact.weights()) {
                    let nearest = burn::tensor::bf16::from_f32(exact).to_f32();
                    let is_as_near = (nearest - exact).abs() == (rounded - exact).abs();
                    assert!(nearest == rounded || is_as_near, "{exact:e} to {rounded:e}");
                }
            }
        }
    }
    // One chunk, two, and three, of which the last one has one element or is not full.
    for count in [0, 1, 2, 7, 64, 16_385, 40_001] {
        check("sgd", SgdConfig::new().in_one_pass(), count);
        check("adamw", adamw(), count);
        check("Burn's", AdamWConfig::new().build(), count);
    }
}

/// With 0.999 it would stand still at what one large gradient has made of it.
#[test]
fn a_second_moment_in_bf16_falls_again() {
    let mut run = Run::new(bf16_adamw(), Noise(1).numbers([8, 10]));
    let square = |run: &Run<AdamW, 2>| {
        let state: &AdamWState<2> = run.state.as_ref().expect("stepped");
        let square: Tensor<2> = state.momentum.moment_2.to_tensor();
        numbers(&square.cast(DType::F32))
    };
    let spike = Noise(2).numbers([8, 10]);
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
fn chance_is_the_same_in_every_run_and_after_a_resume() {
    fn weights_after(optimizer: impl Optimizer, is_resumed: bool) -> Vec<f32> {
        let mut noise = Noise(5);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE).cast(DType::BF16));
        for step in 0..6 {
            if is_resumed && step == 3 {
                run.load(&run.saved());
            }
            run.step(1e-3, noise.numbers(SHAPE).cast(DType::BF16));
        }
        run.weights()
    }
    fn check(name: &str, optimizer: impl Optimizer) -> Vec<f32> {
        let weights = weights_after(optimizer.clone(), false);
        assert_eq!(weights, weights_after(optimizer.clone(), false), "{name}");
        assert_eq!(weights, weights_after(optimizer, true), "{name}, resumed");
        weights
    }
    let stochastic = |seed| Bf16Weights::new(adamw(), Stochastic { seed });
    let one = check("stochastic", stochastic(1));
    assert_ne!(one, check("stochastic", stochastic(2)));
    check("master weights", Bf16Weights::new(adamw(), MasterWeights));
    check(
        "bf16 moments",
        Bf16Weights::new(bf16_adamw(), MasterWeights),
    );
}

#[test]
fn weights_stay_where_they_are_between_steps_of_micro_batches() {
    const MICRO_BATCHES: usize = 4;
    fn check<O: Optimizer>(optimizer: O, exact: impl Fn(&Run<O, 2>) -> Tensor<2>) {
        let mut noise = Noise(3);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE).cast(DType::BF16));
        let mut before = run.weight().clone().cast(DType::F32);
        for place in 0..2 * MICRO_BATCHES {
            run.step(0.01, noise.numbers(SHAPE).cast(DType::BF16));
            let now = exact(&run);
            let moved: f32 = (now.clone() - before).abs().max().into_scalar();
            let is_last = (place + 1).is_multiple_of(MICRO_BATCHES);
            // One and what is kept of it, 256 times smaller, are added up in 32 bits.
            assert_eq!(moved > 1e-7, is_last, "gradient {place}: {moved}");
            before = now;
        }
    }
    let accumulating = || {
        let adamw = adamw().accumulating(MICRO_BATCHES, MomentDecay::EachStep);
        adamw.unwrap()
    };
    let stochastic = Bf16Weights::new(accumulating(), Stochastic { seed: 1 });
    check(stochastic, |run| run.weight().clone().cast(DType::F32));
    // What lies half way between two numbers may be rounded to either; with what is kept it is the
    // same.
    check(Bf16Weights::new(accumulating(), MasterWeights), |run| {
        let low = run.state.clone().unwrap().low;
        MasterWeights.widen(run.weight().clone(), low)
    });
}

#[test]
#[should_panic(expected = "this one is in F32")]
fn weights_in_32_bits_are_refused() {
    let optimizer = Bf16Weights::new(adamw(), MasterWeights);
    let mut noise = Noise(1);
    let mut run = Run::new(optimizer, noise.numbers(SHAPE));
    run.step(0.01, noise.numbers(SHAPE));
}

//! Gradients of micro-batches that go into the moments.

use std::fmt::Debug;

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig};

use super::noise::Noise;
use super::run::{Run, numbers};
use super::settings::refused;
use super::side::{
    AccumulateInMoments, AdamW, AdaptiveMomentumState, CannotAccumulate, EightBitMoments,
    InOnePass, Lean, LionConfig, Moment, MomentDecay, Optimizer, RAdamConfig, Sgd,
    StableAdamWConfig, Tensor, device, lion, model_without_embeddings, places_with_bf16,
};

const SHAPE: [usize; 2] = [64, 100];

const MICRO_BATCHES: usize = 4;

const BOTH: [MomentDecay; 2] = [MomentDecay::EachMicroBatch, MomentDecay::EachStep];

fn adamw() -> AdamW {
    AdamWConfig::new().in_one_pass()
}

fn bf16_adamw() -> AdamW {
    let adamw = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    adamw.with_bf16_moments()
}

fn momentum() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
}

fn grads(steps: usize) -> Vec<Tensor<2>> {
    let mut noise = Noise(3);
    (0..steps).map(|_| noise.numbers(SHAPE)).collect()
}

fn run<O: Optimizer>(optimizer: O) -> Run<O, 2> {
    Run::new(optimizer, Noise(2).numbers(SHAPE))
}

/// One micro-batch is the optimizer as it was, and of several only the last moves the weight.
#[test]
fn a_weight_moves_with_the_last_micro_batch() {
    fn check(name: &str, optimizer: impl AccumulateInMoments + Optimizer, decay: MomentDecay) {
        for device in places_with_bf16() {
            let what = format!("{name} {decay:?} on {device:?}");
            let tensor = |seed| Noise(seed).tensor(SHAPE, &device, Noise::number);
            let alone = optimizer.clone().accumulating(1, decay).unwrap();
            let mut plain = Run::new(optimizer.clone(), tensor(2));
            let mut alone = Run::new(alone, tensor(2));
            for step in 0..6 {
                plain.step(0.01, tensor(step + 10));
                alone.step(0.01, tensor(step + 10));
                assert_eq!(plain.weights(), alone.weights(), "{what} step {step}");
            }
            let several = optimizer.clone().accumulating(MICRO_BATCHES, decay);
            let mut several = Run::new(several.unwrap(), tensor(2));
            let mut before = several.weights();
            for place in 0..3 * MICRO_BATCHES {
                several.step(0.01, tensor(place as u64 + 10));
                let is_last = (place + 1).is_multiple_of(MICRO_BATCHES);
                let after = several.weights();
                assert_eq!(after != before, is_last, "{what} gradient {place}");
                before = after;
            }
        }
    }
    let amsgrad = AdamWConfig::new().with_amsgrad(true);
    let amsgrad = amsgrad.with_cautious_weight_decay(true);
    let in_8_bits = adamw().with_8_bit_moments(&model_without_embeddings());
    for decay in BOTH {
        check("adam", AdamConfig::new().in_one_pass(), decay);
        check("adamw, amsgrad", amsgrad.in_one_pass(), decay);
        check("adamw in 8 bits", in_8_bits.clone(), decay);
        check("radam", RAdamConfig::new().build(), decay);
        check("sgd", momentum().in_one_pass(), decay);
    }
    // These accumulate in this way alone: see the refusals below.
    let each = MomentDecay::EachMicroBatch;
    check("lion", lion(&LionConfig::new()), each);
    check("stable adamw", StableAdamWConfig::new().build(), each);
    check("adamw in bf16", bf16_adamw(), each);
}

/// The sums of so many gradients each, as an accumulator makes them.
fn sums(grads: &[Tensor<2>]) -> impl Iterator<Item = Tensor<2>> {
    grads.chunks(MICRO_BATCHES).map(|grads| {
        let sum = grads[1..].iter().cloned();
        sum.fold(grads[0].clone(), |sum, grad| sum + grad)
    })
}

/// NaN, if there is one.
fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    let pairs = one.iter().zip(other);
    let differences = pairs.map(|(one, other)| (one - other).abs());
    differences.max_by(f32::total_cmp).unwrap()
}

/// The velocity takes in the parts of a sum as it would take in the sum: another order of the same
/// additions.
#[test]
fn with_decay_at_each_step_sgd_is_that_of_accumulated_gradients() {
    let grads = grads(10 * MICRO_BATCHES);
    let config = momentum().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    let mut exact = run(config.build());
    let accumulating = config.in_one_pass();
    let accumulating = accumulating.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
    let mut in_moments = run(accumulating.unwrap());
    let start = exact.weights();
    for (sum, parts) in sums(&grads).zip(grads.chunks(MICRO_BATCHES)) {
        exact.step(0.01, sum);
        for grad in parts {
            in_moments.step(0.01, grad.clone());
        }
        // Weights and velocities of about one to ten, in some forty additions of 6e-8 each.
        let apart = largest_difference(&in_moments.weights(), &exact.weights());
        assert!(apart <= 3e-6, "{apart} apart");
    }
    assert!(largest_difference(&start, &exact.weights()) > 0.1);
}

/// The first moment is that of the sum; the second is that of the squares of its parts.
#[test]
fn with_decay_at_each_step_the_first_moment_is_that_of_accumulated_gradients() {
    fn check<O: AccumulateInMoments + Optimizer>(
        name: &str,
        optimizer: O,
        momentum: fn(O::State<2>) -> AdaptiveMomentumState<2>,
    ) {
        let grads = grads(10 * MICRO_BATCHES);
        let mut exact = run(optimizer.clone());
        let in_moments = optimizer.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
        let mut in_moments = run(in_moments.unwrap());
        for (sum, parts) in sums(&grads).zip(grads.chunks(MICRO_BATCHES)) {
            exact.step(0.01, sum);
            for grad in parts {
                in_moments.step(0.01, grad.clone());
            }
        }
        let exact = momentum(exact.state.unwrap());
        let in_moments = momentum(in_moments.state.unwrap().optimizer.unwrap());
        assert_eq!(in_moments.time, exact.time, "{name}");
        let floats = |moment: &Moment<2>| {
            let floats: Tensor<2> = moment.to_tensor();
            numbers(&floats)
        };
        let first = [&in_moments.moment_1, &exact.moment_1].map(floats);
        let apart = largest_difference(&first[0], &first[1]);
        assert!(apart <= 1e-6, "{name}: {apart} apart");
        let mean = |moment| floats(moment).iter().sum::<f32>() / (SHAPE[0] * SHAPE[1]) as f32;
        let ratio = mean(&in_moments.moment_2) / mean(&exact.moment_2);
        // Of independent gradients both are four times the square of one, on average.
        assert!((ratio - 1.0).abs() < 0.1, "{name}: {ratio}");
    }
    let adam = AdamConfig::new().in_one_pass();
    check("adam", adam, |state| state.momentum);
    check("adamw", adamw(), |state| state.momentum);
    check("radam", RAdamConfig::new().build(), |state| state.momentum);
}

/// What a micro-batch adds is less than the codes of 8 bits lie apart, in blocks whose scale is that
/// of a number with its whole gradient in the first micro-batch.
#[test]
fn moments_in_8_bits_take_in_each_micro_batch() {
    const MICRO_BATCHES: usize = 16;
    let grad = |micro_batch: usize| {
        let mut places = 0..;
        let device = device();
        Noise(1).tensor([64, 64], &device, |_| {
            match (places.next().expect("endless") % 128, micro_batch) {
                (0, 0) => 1.0,
                (0, _) => 0.0,
                _ => 0.1 / MICRO_BATCHES as f32,
            }
        })
    };
    let grads: Vec<Tensor<2>> = (0..MICRO_BATCHES).map(grad).collect();
    fn check<O: AccumulateInMoments + EightBitMoments + Optimizer>(
        optimizer: O,
        grads: &[Tensor<2>],
        moment: fn(O::State<2>) -> Moment<2>,
    ) {
        let mean = |optimizer: O| {
            let optimizer = optimizer.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
            let mut run = Run::new(optimizer.unwrap(), Noise(2).numbers([64, 64]));
            for _ in 0..50 {
                for grad in grads {
                    run.step(1e-3, grad.clone());
                }
            }
            let moment: Tensor<2> = moment(run.state.unwrap().optimizer.unwrap()).to_tensor();
            let others = numbers(&moment).into_iter().enumerate();
            let others = others.filter(|(place, _)| place % 128 != 0);
            others.map(|(_, number)| number).sum::<f32>()
        };
        let exact = mean(optimizer.clone());
        let found = mean(optimizer.with_8_bit_moments(&model_without_embeddings()));
        // Each of the other numbers is off by a seventh, and there are 4064 of them.
        let ratio = found / exact;
        assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
    }
    check(adamw(), &grads, |state| state.momentum.moment_1);
    check(momentum().in_one_pass(), &grads, |state| {
        state.momentum.unwrap().velocity
    });
}

#[test]
fn a_record_of_longer_steps_moves_with_the_next_gradient() {
    let mut long = run(adamw().accumulating(4, MomentDecay::EachStep).unwrap());
    let grads = grads(4);
    for grad in &grads[..3] {
        long.step(0.01, grad.clone());
    }
    let mut short = run(adamw().accumulating(2, MomentDecay::EachStep).unwrap());
    short.state = long.state;
    let before = short.weights();
    short.step(0.01, grads[3].clone());
    assert_ne!(short.weights(), before);
    assert_eq!(short.state.unwrap().gradients, 0);
}

#[test]
fn what_would_lose_gradients_is_refused() {
    use CannotAccumulate::{Bf16Moments, NoMicroBatches, NoMoment, StepsWithGradient};

    let zero = adamw().accumulating(0, MomentDecay::EachStep);
    assert_eq!(zero.unwrap_err(), NoMicroBatches);
    for decay in BOTH {
        let sgd = SgdConfig::new().in_one_pass();
        assert_eq!(sgd.accumulating(4, decay).unwrap_err(), NoMoment);
    }
    // What would have to decay with each micro-batch, and says so.
    fn refusal(optimizer: impl AccumulateInMoments + Debug) -> CannotAccumulate {
        optimizer
            .accumulating(4, MomentDecay::EachStep)
            .unwrap_err()
    }
    fn sgd(change: impl Fn(MomentumConfig) -> MomentumConfig) -> Sgd {
        let momentum = change(MomentumConfig::new().with_dampening(0.0));
        SgdConfig::new().with_momentum(Some(momentum)).in_one_pass()
    }
    for (name, refusal) in [
        ("Nesterov", refusal(sgd(|sgd| sgd.with_nesterov(true)))),
        ("dampening", refusal(sgd(|sgd| sgd.with_dampening(0.1)))),
        ("Lion", refusal(lion(&LionConfig::new()))),
        ("Stable", refusal(StableAdamWConfig::new().build())),
        ("bf16", refusal(bf16_adamw())),
    ] {
        let is_expected = match refusal {
            Bf16Moments => name == "bf16",
            other => matches!(other, StepsWithGradient { .. }),
        };
        let said = refusal.to_string();
        assert!(is_expected && said.contains(name), "{name}: {said}");
        assert!(said.contains("EachMicroBatch"), "{name}: {said}");
    }
}

/// Each micro-batch adds to moments that do not decay: with a `beta_2` of 0.99 the second one would
/// stop at some 400 times what a gradient adds, where 32 bits have 1600 after 16 micro-batches.
#[test]
fn bf16_for_moments_that_decay_once_a_step_is_refused() {
    let accumulating = |micro_batches, decay| {
        let adamw = AdamWConfig::new().with_beta_2(0.99).in_one_pass();
        adamw.accumulating(micro_batches, decay).unwrap()
    };
    let [each_micro_batch, each_step] = BOTH;
    let said = refused(|| accumulating(16, each_step).with_bf16_moments());
    assert!(said.contains("EachStep"), "{said}");
    // What decays with each gradient is as without micro-batches.
    let _ = accumulating(16, each_micro_batch).with_bf16_moments();
    let _ = accumulating(1, each_step).with_bf16_moments();
}

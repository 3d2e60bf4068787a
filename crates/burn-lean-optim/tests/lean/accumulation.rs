//! Gradients of micro-batches that go into the moments.

use burn::{
    backend::{Flex, NdArray},
    optim::{
        AdamConfig, AdamWConfig, SgdConfig, SimpleOptimizer, decay::WeightDecayConfig,
        momentum::MomentumConfig,
    },
    record::{BinBytesRecorder, FullPrecisionSettings, Recorder},
    tensor::{DType, Tensor, backend::Backend},
};
use burn_lean_optim::{
    AccumulateInMoments, AdaptiveMomentumState, Bf16Weights, CannotAccumulate, EightBitMoments,
    InOnePass, Lean, LionConfig, MasterWeights, Moment, MomentDecay, RAdamConfig, Rounding,
    StableAdamWConfig, Stochastic,
};

use crate::harness::{Noise, Run};

const SHAPE: [usize; 2] = [64, 100];

const MICRO_BATCHES: usize = 4;

const BOTH: [MomentDecay; 2] = [MomentDecay::EachMicroBatch, MomentDecay::EachStep];

fn momentum() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
}

fn grads<B: Backend>(steps: usize) -> Vec<Tensor<B, 2>> {
    let mut noise = Noise(3);
    (0..steps)
        .map(|_| noise.tensor(SHAPE, Noise::number))
        .collect()
}

fn run<B: Backend, O: SimpleOptimizer<B>>(optimizer: O) -> Run<O, B, 2> {
    Run::new(optimizer, Noise(2).tensor(SHAPE, Noise::number))
}

/// One micro-batch is the optimizer as it was, and of several only the last moves the weight.
fn assert_moves_with_the_last<B: Backend, O>(optimizer: O)
where
    O: AccumulateInMoments + SimpleOptimizer<B> + std::fmt::Debug,
{
    for decay in BOTH {
        let Ok(alone) = optimizer.clone().accumulating(1, decay) else {
            continue;
        };
        let (mut plain, mut alone) = (run::<B, _>(optimizer.clone()), run(alone));
        for (step, grad) in grads(6).into_iter().enumerate() {
            plain.step(0.01, grad.clone());
            alone.step(0.01, grad);
            assert_eq!(
                plain.weights(),
                alone.weights(),
                "{optimizer:?} step {step}"
            );
        }
        // In bf16, moments that decay once a step are refused.
        let Ok(several) = optimizer.clone().accumulating(MICRO_BATCHES, decay) else {
            continue;
        };
        let mut run = run::<B, _>(several);
        let mut before = run.weights();
        for (place, grad) in grads(3 * MICRO_BATCHES).into_iter().enumerate() {
            run.step(0.01, grad);
            let is_last = (place + 1) % MICRO_BATCHES == 0;
            assert_eq!(
                run.weights() != before,
                is_last,
                "{optimizer:?} {decay:?} gradient {place}"
            );
            before = run.weights();
        }
    }
}

#[test]
fn a_weight_moves_with_the_last_micro_batch() {
    fn assert_all<B: burn_lean_optim::LeanBackend>() {
        assert_moves_with_the_last::<B, _>(AdamConfig::new().in_one_pass());
        assert_moves_with_the_last::<B, _>(
            AdamWConfig::new()
                .with_amsgrad(true)
                .with_cautious_weight_decay(true)
                .in_one_pass(),
        );
        let model = burn::nn::LinearConfig::new(2, 2).init::<B>(&Default::default());
        assert_moves_with_the_last::<B, _>(
            AdamWConfig::new().in_one_pass().with_8_bit_moments(&model),
        );
        assert_moves_with_the_last::<B, _>(momentum().in_one_pass());
        assert_moves_with_the_last::<B, _>(RAdamConfig::new().build());
        assert_moves_with_the_last::<B, _>(LionConfig::new().build());
        assert_moves_with_the_last::<B, _>(StableAdamWConfig::new().build());
    }
    assert_all::<Flex>();
    assert_all::<NdArray>();
    assert_moves_with_the_last::<Flex, _>(
        AdamWConfig::new()
            .with_beta_2(0.99)
            .in_one_pass()
            .with_bf16_moments(),
    );
}

/// The sums of so many gradients each, as an accumulator makes them.
fn sums(grads: &[Tensor<Flex, 2>]) -> impl Iterator<Item = Tensor<Flex, 2>> {
    grads.chunks(MICRO_BATCHES).map(|grads| {
        let sum = grads[1..].iter().cloned();
        sum.fold(grads[0].clone(), |sum, grad| sum + grad)
    })
}

fn assert_close(one: &[f32], other: &[f32], tolerance: f32) {
    let pairs = one.iter().zip(other);
    let largest = pairs
        .map(|(one, other)| (one - other).abs())
        .fold(0.0, f32::max);
    assert!(largest <= tolerance, "{largest} apart");
}

/// The velocity takes in the parts of a sum as it would take in the sum: another order of the same
/// additions.
#[test]
fn with_decay_at_each_step_sgd_is_that_of_accumulated_gradients() {
    let grads = grads(10 * MICRO_BATCHES);
    let config = momentum().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    let mut exact = run::<Flex, _>(config.build());
    let mut in_moments = run(config
        .in_one_pass()
        .accumulating(MICRO_BATCHES, MomentDecay::EachStep)
        .unwrap());
    let start = exact.weights();
    for (sum, parts) in sums(&grads).zip(grads.chunks(MICRO_BATCHES)) {
        exact.step(0.01, sum);
        parts
            .iter()
            .for_each(|grad| in_moments.step(0.01, grad.clone()));
        // Weights and velocities of about one to ten, in some forty additions of 6e-8 each.
        assert_close(&in_moments.weights(), &exact.weights(), 3e-6);
    }
    let moved = start.iter().zip(exact.weights());
    assert!(
        moved
            .map(|(start, end)| (start - end).abs())
            .fold(0.0, f32::max)
            > 0.1
    );
}

/// The first moment is that of the sum; the second is that of the squares of its parts.
#[test]
fn with_decay_at_each_step_the_first_moment_is_that_of_accumulated_gradients() {
    fn assert_moments<O>(optimizer: O, momentum: fn(O::State<2>) -> AdaptiveMomentumState<Flex>)
    where
        O: AccumulateInMoments + SimpleOptimizer<Flex>,
    {
        let grads = grads(10 * MICRO_BATCHES);
        let mut exact = run::<Flex, _>(optimizer.clone());
        let in_moments = optimizer.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
        let mut in_moments = run(in_moments.unwrap());
        for (sum, parts) in sums(&grads).zip(grads.chunks(MICRO_BATCHES)) {
            exact.step(0.01, sum);
            parts
                .iter()
                .for_each(|grad| in_moments.step(0.01, grad.clone()));
        }
        let exact = momentum(exact.state.unwrap());
        let in_moments = momentum(in_moments.state.unwrap().optimizer.unwrap());
        assert_eq!(in_moments.time, exact.time);
        let numbers =
            |moment: Moment<Flex>| moment.to_tensor::<2>().into_data().to_vec::<f32>().unwrap();
        assert_close(
            &numbers(in_moments.moment_1),
            &numbers(exact.moment_1),
            1e-6,
        );
        let mean = |numbers: Vec<f32>| numbers.iter().sum::<f32>() / numbers.len() as f32;
        let ours = mean(numbers(in_moments.moment_2));
        let theirs = mean(numbers(exact.moment_2));
        // Of independent gradients both are four times the square of one, on average.
        assert!((ours / theirs - 1.0).abs() < 0.1, "{ours}, {theirs}");
    }
    assert_moments(AdamConfig::new().in_one_pass(), |state| state.momentum);
    assert_moments(AdamWConfig::new().in_one_pass(), |state| state.momentum);
    assert_moments(RAdamConfig::new().build(), |state| state.momentum);
}

#[test]
fn a_run_is_resumed_between_micro_batches() {
    let adamw = || AdamWConfig::new().in_one_pass();
    for decay in BOTH {
        let weights = |resumes_at: Option<usize>| {
            let mut run = run::<Flex, _>(adamw().accumulating(MICRO_BATCHES, decay).unwrap());
            for (place, grad) in grads(3 * MICRO_BATCHES).into_iter().enumerate() {
                if resumes_at == Some(place) {
                    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
                    let bytes = recorder.record(run.state.take().unwrap(), ()).unwrap();
                    run.state = Some(recorder.load(bytes, &Default::default()).unwrap());
                }
                run.step(0.01, grad);
            }
            run.weights()
        };
        for place in [1, MICRO_BATCHES, MICRO_BATCHES + 3] {
            assert_eq!(
                weights(Some(place)),
                weights(None),
                "{decay:?}, resumed at {place}"
            );
        }
    }
}

#[test]
fn a_record_of_longer_steps_moves_with_the_next_gradient() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let long = adamw().accumulating(4, MomentDecay::EachStep).unwrap();
    let mut long = run::<Flex, _>(long);
    let grads = grads(4);
    for grad in &grads[..3] {
        long.step(0.01, grad.clone());
    }
    let short = adamw().accumulating(2, MomentDecay::EachStep).unwrap();
    let mut short = run::<Flex, _>(short);
    short.state = long.state;
    let before = short.weights();
    short.step(0.01, grads[3].clone());
    assert_ne!(short.weights(), before);
    assert_eq!(short.state.unwrap().gradients, 0);
}

#[test]
fn weights_in_bf16_stay_where_they_are_between_steps() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let accumulating = || {
        adamw()
            .accumulating(MICRO_BATCHES, MomentDecay::EachStep)
            .unwrap()
    };
    fn assert_moves<O: SimpleOptimizer<Flex>>(
        optimizer: O,
        exact: impl Fn(&Run<O, Flex, 2>) -> Tensor<Flex, 2>,
    ) {
        let weight: Tensor<Flex, 2> = Noise(2).tensor(SHAPE, Noise::number);
        let mut run = Run::new(optimizer, weight.cast(DType::BF16));
        let mut before = run.weight.clone().unwrap().cast(DType::F32);
        for (place, grad) in grads::<Flex>(2 * MICRO_BATCHES).into_iter().enumerate() {
            run.step(0.01, grad.cast(DType::BF16));
            let now = exact(&run);
            let moved: f32 = (now.clone() - before).abs().max().into_scalar();
            let is_last = (place + 1) % MICRO_BATCHES == 0;
            // One and what is kept of it, 256 times smaller, are added up in 32 bits.
            assert_eq!(moved > 1e-7, is_last, "gradient {place}: {moved}");
            before = now;
        }
    }
    assert_moves(
        Bf16Weights::new(accumulating(), Stochastic { seed: 1 }),
        |run| run.weight.clone().unwrap().cast(DType::F32),
    );
    // What lies half way between two numbers may be rounded to either; with what is kept it is the
    // same.
    assert_moves(Bf16Weights::new(accumulating(), MasterWeights), |run| {
        let low = run.state.clone().unwrap().low;
        MasterWeights.widen(run.weight.clone().unwrap(), low)
    });
}

#[test]
fn what_would_lose_gradients_is_refused() {
    use CannotAccumulate::{NoMicroBatches, NoMoment, StepsWithGradient};

    let adamw = AdamWConfig::new().in_one_pass();
    assert_eq!(
        adamw.accumulating(0, MomentDecay::EachStep).unwrap_err(),
        NoMicroBatches
    );
    for decay in BOTH {
        let sgd = SgdConfig::new().in_one_pass();
        assert_eq!(sgd.accumulating(4, decay).unwrap_err(), NoMoment);
    }
    let sgd = |nesterov, dampening| {
        let momentum = MomentumConfig::new()
            .with_nesterov(nesterov)
            .with_dampening(dampening);
        SgdConfig::new().with_momentum(Some(momentum)).in_one_pass()
    };
    let each_step = MomentDecay::EachStep;
    let refusals = [
        sgd(true, 0.0).accumulating(4, each_step).unwrap_err(),
        sgd(false, 0.1).accumulating(4, each_step).unwrap_err(),
        LionConfig::new()
            .build()
            .accumulating(4, each_step)
            .unwrap_err(),
        StableAdamWConfig::new()
            .build()
            .accumulating(4, each_step)
            .unwrap_err(),
    ];
    for (refusal, name) in refusals
        .into_iter()
        .zip(["Nesterov", "dampening", "Lion", "Stable"])
    {
        assert!(matches!(refusal, StepsWithGradient { .. }));
        assert!(refusal.to_string().contains(name), "{refusal}");
        assert!(refusal.to_string().contains("EachMicroBatch"), "{refusal}");
    }
}

/// Each micro-batch adds to moments that do not decay: with a `beta_2` of 0.99 the second one would
/// stop at some 400 times what a gradient adds, where 32 bits have 1600 after 16 micro-batches.
#[test]
fn moments_in_bf16_that_decay_once_a_step_are_refused() {
    let adamw = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let [each_micro_batch, each_step] = BOTH;
    let refusal = adamw().with_bf16_moments().accumulating(16, each_step);
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal, CannotAccumulate::Bf16Moments);
    assert!(refusal.to_string().contains("EachMicroBatch"), "{refusal}");
    let accumulating = adamw().accumulating(16, each_step).unwrap();
    let refused = std::panic::catch_unwind(|| accumulating.with_bf16_moments()).unwrap_err();
    let said = refused.downcast::<String>().expect("it says why");
    assert!(said.contains("EachStep"), "{said}");

    // What decays with each gradient is as without micro-batches.
    let accumulating = adamw().accumulating(16, each_micro_batch).unwrap();
    let _ = accumulating.with_bf16_moments();
    let _ = adamw()
        .accumulating(1, each_step)
        .unwrap()
        .with_bf16_moments();
    let accumulating = adamw()
        .with_bf16_moments()
        .accumulating(16, each_micro_batch);
    assert!(accumulating.is_ok());
}

//! Gradients accumulated over micro-batches in a hand-written loop: Burn's sums, in less memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer, SgdConfig,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{
    Outcome, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

use crate::ALLOCATIONS;
use crate::harness::models::{
    Cnn, Mlp, MlpModel, Recurrent, Scenario, Size, Tied, Transformer, Views, WeightNorm,
};
use crate::harness::run::{RATE, Start, outcomes};
use crate::harness::weights::{load, save};
use crate::harness::{Hooked, Plain, Recipe, Release, Weights, memory, noise};

type P = Plain;
type R = Release;

/// Plain Burn's weights after each window of `n` micro-batches.
fn plain<S: Scenario>(start: &Start, recipe: &impl Recipe, n: u64, windows: u64) -> Vec<Weights> {
    let mut model = start.model::<S, P>();
    let mut optim = recipe.make::<P, S::Model<P>>();
    let mut weights = Vec::new();
    for window in 0..windows {
        let mut accumulator = GradientsAccumulator::new();
        for micro_batch in 0..n {
            let loss = S::loss::<P>(&model, Size::Small, window * n + micro_batch);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            accumulator.accumulate(&model, grads);
        }
        model = optim.step(RATE, model, accumulator.grads());
        weights.push(Weights::of::<P, _>(&model));
    }
    weights
}

/// The micro-batches with release.
fn release<S: Scenario>(start: &Start, recipe: &impl Recipe, n: u64, windows: u64) -> Vec<Weights> {
    let mut model = start.model::<S, R>();
    let mut optim = recipe.make::<R, S::Model<R>>().with_gradient_release();
    let mut accumulator = ReleaseAccumulator::new();
    let mut weights = Vec::new();
    for window in 0..windows {
        for micro_batch in 1..=n {
            model = if micro_batch < n {
                accumulator.arm(model)
            } else {
                optim.arm_accumulated(RATE, model, accumulator.grads())
            };
            let loss = S::loss::<R>(&model, Size::Small, window * n + micro_batch - 1);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            assert!(grads.is_empty(), "every gradient is added inside backward");
            if micro_batch < n {
                accumulator.accumulate(&model, grads);
            } else {
                model = optim.step(RATE, model, grads);
            }
        }
        let [_, _, ordinary, _] = outcomes(&optim.last_step().expect("a step"));
        assert_eq!(ordinary, 0);
        weights.push(Weights::of::<R, _>(&model));
    }
    weights
}

fn same<S: Scenario>(recipe: &impl Recipe) {
    let start = Start::new::<S>(Size::Small);
    for n in [1, 2, 4] {
        let expected = plain::<S>(&start, recipe, n, 4);
        let found = release::<S>(&start, recipe, n, 4);
        expected[3].assert_moved(&expected[0], "the reference");
        for (window, (found, expected)) in found.iter().zip(&expected).enumerate() {
            found.assert_same(expected, format_args!("n = {n}, window {window}"));
        }
    }
}

macro_rules! sums_are_burns {
    ($($name:ident: $scenario:ty),*) => {
        mod sums_are_burns {
            use super::*;

            $(#[test]
            fn $name() {
                let clipped = GradientClippingConfig::Norm(0.01);
                same::<$scenario>(&SgdConfig::new().with_momentum(Some(MomentumConfig::new())));
                same::<$scenario>(&AdamConfig::new().with_grad_clipping(Some(clipped)));
                same::<$scenario>(&AdamWConfig::new());
            })*
        }
    };
}

sums_are_burns!(
    mlp: Mlp,
    cnn: Cnn,
    transformer: Transformer,
    recurrent: Recurrent,
    tied: Tied,
    views: Views,
    weight_norm: WeightNorm
);

/// Two parts, of which a micro-batch uses one, the other, or both.
#[derive(Module, Debug)]
struct Halves<B: Backend> {
    left: Linear<B>,
    right: Linear<B>,
}

impl<B: AutodiffBackend> Halves<B> {
    fn new() -> Self {
        let linear = || LinearConfig::new(4, 2).init(&Default::default());
        Self {
            left: linear(),
            right: linear(),
        }
    }

    fn gradients(&self, micro_batch: u64, use_left: bool, use_right: bool) -> GradientsParams {
        let x = noise::<B, 2>(micro_batch, [3, 4], &Default::default());
        let parts = [(use_left, &self.left), (use_right, &self.right)];
        let loss = parts
            .into_iter()
            .filter(|(used, _)| *used)
            .map(|(_, part)| part.forward(x.clone()).square().mean())
            .reduce(Tensor::add)
            .expect("something is used");
        GradientsParams::from_grads(loss.backward(), self)
    }
}

/// Parts that the micro-batches of one window use: left, right.
const USES: [[[bool; 2]; 3]; 4] = [
    // Only in an earlier micro-batch: the last one steps it with the sum it holds.
    [[true, true], [true, false], [true, false]],
    // Only in the last one.
    [[true, false], [true, false], [true, true]],
    // Not at all.
    [[true, false], [true, false], [true, false]],
    [[false, true], [true, true], [false, true]],
];

#[test]
fn a_parameter_may_be_missing_in_any_micro_batch() {
    let device = Default::default();
    let bytes = save(Halves::<P>::new());
    let mut plain = load::<P, _>(Halves::new(), &bytes, &device);
    let mut plain_optim = AdamConfig::new().init();
    let mut model = load::<R, _>(Halves::new(), &bytes, &device);
    let mut optim = AdamConfig::new().init().with_gradient_release();
    let mut accumulator = ReleaseAccumulator::new();

    for (window, uses) in USES.into_iter().enumerate() {
        let mut sums = GradientsAccumulator::new();
        for (place, [left, right]) in uses.into_iter().enumerate() {
            let micro_batch = (window * 3 + place) as u64;
            let is_last = place == 2;
            sums.accumulate(&plain, plain.gradients(micro_batch, left, right));
            model = if is_last {
                optim.arm_accumulated(RATE, model, accumulator.grads())
            } else {
                accumulator.arm(model)
            };
            let grads = model.gradients(micro_batch, left, right);
            if is_last {
                plain = plain_optim.step(RATE, plain, sums.grads());
                model = optim.step(RATE, model, grads);
            } else {
                accumulator.accumulate(&model, grads);
            }
        }
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), window);
    }
}

struct Bench {
    start: Start,
    model: MlpModel<R>,
    accumulator: ReleaseAccumulator<MlpModel<R>, R>,
    optim: ReleaseOptimizer<burn::optim::Adam, MlpModel<R>, R>,
}

fn bench() -> Bench {
    let start = Start::new::<Mlp>(Size::Small);
    Bench {
        model: start.model::<Mlp, R>(),
        start,
        accumulator: ReleaseAccumulator::new(),
        optim: AdamConfig::new().init().with_gradient_release(),
    }
}

fn backward(model: &MlpModel<R>, micro_batch: u64) -> GradientsParams {
    let loss = Mlp::loss::<R>(model, Size::Small, micro_batch);
    GradientsParams::from_grads(loss.backward(), model)
}

/// Compares the step with the sums with plain Burn's window of two.
#[track_caller]
fn finishes_as_burn(bench: Bench) {
    let Bench {
        start,
        mut model,
        mut accumulator,
        mut optim,
    } = bench;
    model = optim.arm_accumulated(RATE, model, accumulator.grads());
    let grads = backward(&model, 1);
    model = optim.step(RATE, model, grads);
    let expected = plain::<Mlp>(&start, &AdamConfig::new(), 2, 1);
    Weights::of::<R, _>(&model).assert_same(&expected[0], "the window");
}

#[test]
fn arming_again_without_a_backward_keeps_the_sums() {
    let mut bench = bench();
    bench.model = bench.accumulator.arm(bench.model);
    let grads = backward(&bench.model, 0);
    bench.accumulator.accumulate(&bench.model, grads);
    bench.model = bench.accumulator.arm(bench.model);
    bench.model = bench.accumulator.arm(bench.model);
    // A forward pass that nobody comes back from.
    let _ = Mlp::loss::<R>(&bench.model, Size::Small, 7);
    bench
        .accumulator
        .accumulate(&bench.model, GradientsParams::new());
    finishes_as_burn(bench);
}

/// The weights do not change while gradients are summed, so two losses may be two backward passes:
/// unlike in the micro-batch that steps.
#[test]
fn a_micro_batch_may_run_backward_twice() {
    let mut bench = bench();
    let mut plain = bench.start.model::<Mlp, P>();
    let mut sums = GradientsAccumulator::new();
    for step in [0, 1] {
        let loss = Mlp::loss::<P>(&plain, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &plain);
        sums.accumulate(&plain, grads);
    }
    plain = AdamConfig::new().init().step(RATE, plain, sums.grads());

    bench.model = bench.accumulator.arm(bench.model);
    let first = backward(&bench.model, 0);
    let second = backward(&bench.model, 1);
    assert!(first.is_empty() && !second.is_empty());
    bench.accumulator.accumulate(&bench.model, second);
    let model = bench
        .optim
        .step(RATE, bench.model, bench.accumulator.grads());
    Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), "both");
}

#[test]
fn the_weights_stay_and_can_be_read() {
    let mut bench = bench();
    let before = Weights::of::<R, _>(&bench.model);
    bench.model = bench.accumulator.arm(bench.model);
    let grads = backward(&bench.model, 0);
    Weights::of::<R, _>(&bench.model).assert_same(&before, "after backward");
    bench.accumulator.accumulate(&bench.model, grads);
    Weights::of::<R, _>(&bench.model).assert_same(&before, "after accumulating");
    finishes_as_burn(bench);
}

#[test]
fn misuse_is_refused() {
    let mut bench = bench();
    let model = bench.accumulator.arm(bench.model);

    let refused = bench.optim.try_arm(RATE, model).expect_err("armed already");
    let (model, error) = refused.into_parts();
    assert!(matches!(error, ReleaseError::ArmedElsewhere { .. }));

    let grads = backward(&model, 0);
    let refused = bench.accumulator.try_arm(model).expect_err("not ended");
    let (model, error) = refused.into_parts();
    assert!(matches!(
        error,
        ReleaseError::NotAccumulated { added: 6, armed: 6 }
    ));
    assert!(error.to_string().contains("call `accumulate`"), "{error}");
    let caught = catch_unwind(AssertUnwindSafe(|| bench.accumulator.grads()));
    assert!(caught.is_err(), "the sums are with the model");

    let other = Mlp::init::<R>(Size::Small, &Default::default());
    let error = bench
        .accumulator
        .try_accumulate(&other, GradientsParams::new())
        .expect_err("another model");
    assert!(matches!(error, ReleaseError::WrongModel { .. }));

    // None of it has changed anything.
    bench.accumulator.accumulate(&model, grads);
    finishes_as_burn(Bench { model, ..bench });
}

#[test]
fn gradients_thrown_away_are_refused() {
    let mut bench = bench();
    let model = bench.accumulator.arm(bench.model);
    let _ = Mlp::loss::<R>(&model, Size::Small, 0).backward();
    let error = bench
        .accumulator
        .try_accumulate(&model, GradientsParams::new())
        .expect_err("plain Burn would accumulate nothing");
    assert!(matches!(error, ReleaseError::Unclaimed { .. }));
    assert!(error.to_string().contains("from_grads"), "{error}");
}

/// The sums of a backward that panicked have this micro-batch in part.
#[test]
fn a_panic_half_way_makes_the_sums_useless() {
    let Bench { model, .. } = bench();
    let mut layers = model.layers;
    let mut optim = Hooked::failing_at(1)
        .make::<R, Linear<R>>()
        .with_gradient_release();
    let mut accumulator = ReleaseAccumulator::new();
    let mut last = layers.pop().expect("three layers");
    layers[0] = optim.arm(RATE, layers[0].clone());
    last = accumulator.arm(last);
    layers.push(last.clone());
    let model = MlpModel { layers };

    let caught = catch_unwind(AssertUnwindSafe(|| backward(&model, 0)));
    assert!(caught.is_err(), "the optimizer fails at the first layer");
    let error = accumulator
        .try_accumulate(&last, GradientsParams::new())
        .expect_err("half done");
    assert_eq!(error, ReleaseError::HalfAccumulated { added: 2, armed: 2 });
    assert!(error.to_string().contains("begin the window anew"));
    assert!(accumulator.try_arm(last).is_err());
}

/// Numbers and bytes of a window of four: the sums, and one gradient beside them.
#[test]
fn bytes() {
    memory::alone("accumulator::bytes", || {
        const N: u64 = 4;
        let start = Start::new::<Mlp>(Size::Large);
        // Bytes that stay after a window, and the most within it, of the second window.
        let plain = |floor: usize| {
            let mut model = start.model::<Mlp, P>();
            let mut optim = AdamConfig::new().init();
            let mut bytes = [0; 2];
            for window in 0..2 {
                ALLOCATIONS.reset_peak_usage();
                let mut sums = GradientsAccumulator::new();
                for micro_batch in 0..N {
                    let loss = Mlp::loss::<P>(&model, Size::Large, window * N + micro_batch);
                    let grads = GradientsParams::from_grads(loss.backward(), &model);
                    sums.accumulate(&model, grads);
                }
                model = optim.step(RATE, model, sums.grads());
                bytes = [ALLOCATIONS.current_usage(), ALLOCATIONS.peak_usage()];
            }
            let digest = Weights::of::<P, _>(&model).digest();
            (bytes.map(|bytes| bytes - floor), digest)
        };
        let release = |floor: usize| {
            let mut model = start.model::<Mlp, R>();
            let mut optim = AdamConfig::new().init().with_gradient_release();
            let mut sums = ReleaseAccumulator::new();
            let mut bytes = [0; 2];
            for window in 0..2 {
                ALLOCATIONS.reset_peak_usage();
                for micro_batch in 1..=N {
                    model = if micro_batch < N {
                        sums.arm(model)
                    } else {
                        optim.arm_accumulated(RATE, model, sums.grads())
                    };
                    let loss = Mlp::loss::<R>(&model, Size::Large, window * N + micro_batch - 1);
                    let grads = GradientsParams::from_grads(loss.backward(), &model);
                    if micro_batch < N {
                        sums.accumulate(&model, grads);
                    } else {
                        model = optim.step(RATE, model, grads);
                    }
                }
                bytes = [ALLOCATIONS.current_usage(), ALLOCATIONS.peak_usage()];
            }
            let report = optim.last_step().expect("a step");
            assert_eq!(report.count(Outcome::Released), report.outcomes().count());
            let digest = Weights::of::<R, _>(&model).digest();
            (bytes.map(|bytes| bytes - floor), digest)
        };

        // Thread pools and caches come into being once, and belong to none of the runs.
        plain(0);
        release(0);
        let ([kept, plain], expected) = plain(ALLOCATIONS.current_usage());
        let ([_, release], weights) = release(ALLOCATIONS.current_usage());
        assert_eq!(weights, expected, "weights differ from plain Burn's");

        // Weights and Adam's two moments are kept, so gradients are a third of that.
        let gradients = kept / 3;
        // Of eight equal layers.
        let largest = gradients / 8;
        let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
        println!(
            "G {:.2}, kept {:.2}; peak of a window: plain {:.2}, release {:.2} MiB",
            mib(gradients),
            mib(kept),
            mib(plain),
            mib(release),
        );
        // Two more of a parameter's size: a temporary of Adam's, and a transposed weight.
        let bound = kept + gradients + 3 * largest;
        assert!(release <= bound, "over the sums and one gradient");
        assert!(
            plain >= kept + 2 * gradients,
            "the bound would not notice a second set of gradients"
        );
    });
}

//! Clipping by the global norm in two backward passes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::tensor::Distribution;
use burn_gradient_release::TwoPasses;

use super::by_hand::{clip_global, global_norm};
use crate::harness::prelude::*;

const STEPS: u64 = 8;

fn plain_grads<S: Scenario>(model: &S::Model<P>, step: u64) -> GradientsParams {
    let loss = S::loss::<P>(model, Size::Small, step);
    GradientsParams::from_grads(loss.backward(), model)
}

/// A norm that some steps of the run exceed and some do not.
fn median_norm<S: Scenario>(start: &Start, recipe: &impl Recipe) -> f64 {
    let mut model = start.model::<S, P>();
    let mut optim = recipe.make::<P, S::Model<P>>();
    let mut norms: Vec<_> = (0..STEPS)
        .map(|step| {
            let mut grads = plain_grads::<S>(&model, step);
            let norm = global_norm::<P, _>(&model, &mut grads);
            model = optim.step(RATE, model.clone(), grads);
            norm
        })
        .collect();
    norms.sort_by(f64::total_cmp);
    norms[norms.len() / 2]
}

/// How release takes its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    TwoPasses(Recompute),
    /// All gradients are there: one pass is enough.
    Ordinary,
}

const KEPT: Way = Way::TwoPasses(Recompute::None);
const RECOMPUTED: Way = Way::TwoPasses(Recompute::Automatic);

/// The weights, norms and coefficients are those of plain Burn that clips by hand.
fn equals_plain<S: Scenario>(recipe: &impl Recipe, ways: &[Way]) {
    let start = Start::new::<S>(Size::Small);
    let max_norm = median_norm::<S>(&start, recipe);
    let mut plain = start.model::<S, P>();
    let mut optim = recipe.make::<P, S::Model<P>>();
    let expected: Vec<_> = (0..STEPS)
        .map(|step| {
            let mut grads = plain_grads::<S>(&plain, step);
            let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
            plain = optim.step(RATE, plain.clone(), grads);
            (norm, Weights::of::<P, _>(&plain))
        })
        .collect();
    let clipped = expected.iter().filter(|(norm, _)| *norm > max_norm).count();
    assert!(
        (1..expected.len()).contains(&clipped),
        "{clipped} steps were clipped"
    );

    for way in ways {
        let mut model = start.model::<S, R>();
        let optim = recipe.make::<R, S::Model<R>>().with_gradient_release();
        let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
        if let Way::TwoPasses(recompute) = way {
            optim = optim.with_recompute(*recompute);
        }
        let parameters = trainable::<R, _>(&model);
        for (step, (norm, expected)) in expected.iter().enumerate() {
            let loss = |model: &_| S::loss::<R>(model, Size::Small, step as u64);
            if *way == Way::Ordinary {
                let loss = loss(&model);
                model = ordinary_step(RATE, model, &mut optim, loss);
            } else {
                (model, _) = optim.two_passes(RATE, model, loss);
            }
            let context = format!("{way:?}, step {step}");
            Weights::of::<R, _>(&model).assert_same(expected, &context);
            let report = optim.last_step().unwrap();
            match way {
                Way::Ordinary => assert_eq!(report.count(Outcome::Ordinary), parameters),
                Way::TwoPasses(_) => assert_all_released(&report, parameters),
            }
            assert_eq!(report.grad_norm(), Some(*norm), "{context}");
            let is_clipped = report.clip_coefficient().unwrap() < 1.0;
            assert_eq!(is_clipped, max_norm / (norm + 1e-6) < 1.0, "{context}");
        }
    }
}

#[test]
fn equals_plain_burn_clipped_by_hand() {
    let adamw = AdamWConfig::new();
    equals_plain::<Mlp>(&adamw, &[KEPT]);
    equals_plain::<Transformer>(&adamw, &[KEPT, RECOMPUTED, Way::Ordinary]);
    equals_plain::<Tied>(&adamw, &[KEPT]);
    equals_plain::<Recurrent>(&adamw, &[KEPT, RECOMPUTED]);
    equals_plain::<Views>(&adamw, &[KEPT]);
    // Running means are updated once.
    equals_plain::<Cnn>(&adamw, &[KEPT]);
    equals_plain::<Transformer>(&SgdConfig::new(), &[KEPT]);
    // Burn's clipping of each gradient by itself comes after it.
    let own = Some(GradientClippingConfig::Value(0.01));
    equals_plain::<Mlp>(&SgdConfig::new().with_gradient_clipping(own), &[KEPT]);
}

#[derive(Module, Debug)]
struct Noisy<B: Backend> {
    layers: Vec<Linear<B>>,
    norm: BatchNorm<B>,
    dropout: Dropout,
}

impl<B: AutodiffBackend> Noisy<B> {
    fn new() -> Self {
        let device = Default::default();
        let linear = |_| LinearConfig::new(8, 8).init(&device);
        Self {
            layers: (0..3).map(linear).collect(),
            norm: BatchNormConfig::new(8).init(&device),
            dropout: DropoutConfig::new(0.4).init(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let mut x = noise::<B, 2>(step, [16, 8], &Default::default());
        for layer in &self.layers {
            let y = self.dropout.forward(layer.forward(x).tanh());
            x = self.norm.forward(y);
            x = x.clone() + x.random_like(Distribution::Normal(0.0, 0.1));
        }
        x.square().mean()
    }
}

/// A draw without Burn's tensors: the running means are those of before both passes.
#[test]
fn a_refused_step_leaves_running_means() {
    let optim = AdamWConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let mut draws = 0;
    let differs = |model: &Noisy<R>| {
        draws += 1;
        model.loss(draws)
    };
    let model = Noisy::<R>::new();
    let sums = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let (before, held) = (model.norm.running_mean.value_sync().into_data(), sums.len());
    let refused = optim.try_two_passes(RATE, model, sums, differs);
    let refused = refused.unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotRepeatable);
    let (model, sums) = refused.into_given();
    assert_eq!(sums.len(), held, "handed back");
    let after = model.norm.running_mean.value_sync();
    after.into_data().assert_eq(&before, true);
}

/// Alone: the random numbers of a backend are the process's.
#[test]
fn both_passes_draw_the_same_and_the_generator_goes_on_as_after_one() {
    alone(|| {
        let (device, max_norm) = (Default::default(), 0.05);
        let bytes = save::<P, _>(Noisy::<P>::new());
        let mut plain = load::<P, _>(Noisy::new(), &bytes, &device);
        let mut plain_optim = AdamWConfig::new().init();
        <P as Backend>::seed(&device, 3);
        let mut expected = Vec::new();
        for step in 0..6 {
            let loss = plain.loss(step);
            let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
            clip_global::<P, _>(&plain, &mut grads, max_norm);
            plain = plain_optim.step(RATE, plain, grads);
            expected.push(Weights::of::<P, _>(&plain));
        }

        for recompute in [Recompute::None, Recompute::Automatic] {
            let mut model = load::<R, _>(Noisy::<R>::new(), &bytes, &device);
            let mut optim = AdamWConfig::new()
                .init::<R, Noisy<R>>()
                .with_gradient_release()
                .with_recompute(recompute)
                .with_norm_clipping(NormClipping::GlobalNorm { max_norm });
            <R as Backend>::seed(&device, 3);
            for (step, expected) in expected.iter().enumerate() {
                (model, _) = optim.two_passes(RATE, model, |model| model.loss(step as u64));
                let context = format!("{recompute:?}, step {step}");
                Weights::of::<R, _>(&model).assert_same(expected, context);
            }
        }
    });
}

/// A forward pass in which another optimizer takes a step of its own.
#[test]
fn a_step_in_two_passes_within_another() {
    let rule = NormClipping::GlobalNorm { max_norm: 0.05 };
    let optim = || AdamWConfig::new().init().with_gradient_release();
    let start = Start::new::<Mlp>(Size::Small);
    let step = |inner: &dyn Fn()| {
        let mut optim = optim().with_norm_clipping(rule);
        let (model, _) = optim.two_passes(RATE, start.model::<Mlp, R>(), |model| {
            inner();
            Mlp::loss::<R>(model, Size::Small, 0)
        });
        Weights::of::<R, _>(&model)
    };
    let expected = step(&|| {});
    let inner = || drop(step(&|| {}));
    step(&inner).assert_same(&expected, "around another");
}

/// Micro-batches whose sums are clipped as a whole; the last one of a step may use other
/// parameters, and what is held of the others counts.
#[test]
fn sums_of_micro_batches_are_clipped_as_a_whole() {
    fn equals_plain<S: Scenario>(
        max_norm: f64,
        held: u64,
        last: fn(&S::Model<P>, u64) -> Tensor<P, 1>,
        released_last: fn(&S::Model<R>, u64) -> Tensor<R, 1>,
    ) {
        let start = Start::new::<S>(Size::Small);
        let mut plain = start.model::<S, P>();
        let mut plain_optim = AdamWConfig::new().init();
        let mut model = start.model::<S, R>();
        let optim = AdamWConfig::new().init().with_gradient_release();
        let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
        let mut release_sums = ReleaseAccumulator::new();
        for step in 0..8 {
            let mut sums = GradientsAccumulator::new();
            for micro in 0..held {
                sums.accumulate(&plain, plain_grads::<S>(&plain, 10 * step + micro));
            }
            let loss = last(&plain, 10 * step + held);
            sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
            let mut grads = sums.grads();
            let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
            assert!(norm > max_norm, "{norm}");
            plain = plain_optim.step(RATE, plain, grads);

            for micro in 0..held {
                model = release_sums.arm(model);
                let loss = S::loss::<R>(&model, Size::Small, 10 * step + micro);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                release_sums.accumulate(&model, grads);
            }
            let sums = release_sums.grads();
            let last = |model: &_| released_last(model, 10 * step + held);
            (model, _) = optim.try_two_passes(RATE, model, sums, last).unwrap();
            Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
            assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm));
        }
    }

    fn first_layer<B: Backend>(model: &MlpModel<B>, _: u64) -> Tensor<B, 1> {
        model.layers[0].weight.val().square().sum()
    }

    equals_plain::<Transformer>(
        0.7,
        2,
        |model, step| Transformer::loss::<P>(model, Size::Small, step),
        |model, step| Transformer::loss::<R>(model, Size::Small, step),
    );
    equals_plain::<Mlp>(0.05, 1, first_layer, first_layer);
}

/// The first pass keeps no gradient: the peak is that of release without clipping.
#[test]
fn takes_no_more_memory_than_one_pass() {
    alone(|| {
        type S = Transformer;
        let start = Start::new::<S>(Size::Large);
        let peak = |clipping: Option<NormClipping>| {
            let mut model = start.model::<S, R>();
            let mut optim = AdamWConfig::new().init().with_gradient_release();
            if let Some(clipping) = clipping {
                optim = optim.with_norm_clipping(clipping);
            }
            let floor = ALLOCATIONS.current_usage();
            let mut peak = 0;
            for step in 0..3 {
                ALLOCATIONS.reset_peak_usage();
                let forward = |model: &_| S::loss::<R>(model, Size::Large, step);
                if clipping.is_some() {
                    (model, _) = optim.two_passes(RATE, model, forward);
                } else {
                    model = armed_step(RATE, model, &mut optim, forward);
                }
                assert_all_released(&optim.last_step().unwrap(), trainable::<R, _>(&model));
                peak = ALLOCATIONS.peak_usage() - floor;
            }
            peak as f64
        };
        let without = peak(None);
        let with = peak(Some(NormClipping::GlobalNorm { max_norm: 1e-3 }));
        println!("{without} bytes without clipping, {with} with");
        assert!(with <= 1.02 * without, "{with} bytes, {without} without");
    });
}

/// A forward pass that is another one the second time. By hand, as the Learner does it, backward is
/// inside of the passes, and would step with the second loss.
#[test]
fn passes_that_differ_are_refused() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let before = Weights::of::<R, _>(&start.model::<S, R>());
    for (by_hand, recompute) in [
        (false, Recompute::None),
        (true, Recompute::None),
        (true, Recompute::Automatic),
    ] {
        let mut model = start.model::<S, R>();
        let optim = SgdConfig::new().init().with_gradient_release();
        let optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        let mut optim = optim.with_recompute(recompute);
        if by_hand {
            let armed = optim.try_arm_to_measure(model, GradientsParams::new());
            model = armed.unwrap_or_else(|refused| panic!("{refused}"));
            let backward = |model: &_, step| {
                let loss = S::loss::<R>(model, Size::Small, step);
                GradientsParams::from_grads(loss.backward(), model)
            };
            let (grads, mut passes) = TwoPasses::first(&model, || backward(&model, 0));
            optim.try_measured(&model, grads).unwrap();
            model = optim.arm(RATE, model);
            let second = AssertUnwindSafe(|| passes.second(model.clone(), || backward(&model, 1)));
            let payload = catch_unwind(second).map(drop).unwrap_err();
            let text = payload.downcast_ref::<String>().expect("a text");
            assert!(
                text.contains(&ReleaseError::NotRepeatable.to_string()),
                "{text}"
            );
            assert!(
                text.contains("This backward has changed no weight"),
                "{text}"
            );
            model = optim.disarm(model);
        } else {
            let mut step = 0;
            let differs = |model: &_| {
                step += 1;
                S::loss::<R>(model, Size::Small, step)
            };
            let sums = GradientsParams::new();
            let refused = optim
                .try_two_passes(RATE, model, sums, differs)
                .unwrap_err();
            assert_eq!(*refused.error(), ReleaseError::NotRepeatable);
            model = refused.into_model();
        }
        Weights::of::<R, _>(&model).assert_same(&before, "refused");
        let (model, _) = optim.two_passes(RATE, model, |model| S::loss::<R>(model, Size::Small, 0));
        Weights::of::<R, _>(&model).assert_moved(&before, "after the refusal");
    }
}

/// Sums are handed back, and the forward pass does not run, where the rate alone refuses.
#[test]
fn a_wrong_rate_is_refused_before_the_first_pass() {
    let start = Start::new::<Mlp>(Size::Small);
    let owned = ReleaseError::OwnedLearningRate {
        owned: RATE,
        given: 2.0 * RATE,
    };
    let out_of_range = ReleaseError::OutOfRange {
        setting: "the learning rate".into(),
        value: -RATE,
    };
    for (owns, given, expected) in [(true, 2.0 * RATE, owned), (false, -RATE, out_of_range)] {
        let optim = SgdConfig::new().init().with_gradient_release();
        let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        if owns {
            optim = optim.with_learning_rate(RATE);
        }
        let model = start.model::<Mlp, R>();
        let sums = Mlp::loss::<R>(&model, Size::Small, 0).backward();
        let sums = GradientsParams::from_grads(sums, &model);
        let forward = |_: &_| unreachable!("refused before");
        let refused = optim.try_two_passes(given, model, sums, forward);
        let refused = refused.unwrap_err();
        assert_eq!(*refused.error(), expected);
        assert!(!refused.into_given().1.is_empty(), "handed back");
    }
}

/// From the same loss, which does not depend on them: nothing is stepped when it is noticed.
#[test]
fn a_second_pass_that_draws_less_is_refused() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let before = Weights::of::<R, _>(&start.model::<S, R>());
    let optim = SgdConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let armed = optim.try_arm_to_measure(start.model::<S, R>(), GradientsParams::new());
    let model = armed.unwrap_or_else(|refused| panic!("{refused}"));
    let draw = || Tensor::<R, 1>::random([4], Distribution::Default, &Default::default());
    let backward = |model: &_| {
        let loss = S::loss::<R>(model, Size::Small, 0);
        let grads = GradientsParams::from_grads(loss.backward(), model);
        // What is drawn later changes no gradient.
        draw();
        grads
    };
    let (grads, mut passes) = TwoPasses::first(&model, || {
        draw();
        backward(&model)
    });
    optim.try_measured(&model, grads).unwrap();
    let model = optim.arm(RATE, model);
    let second = AssertUnwindSafe(|| passes.second(model.clone(), || backward(&model)));
    let payload = catch_unwind(second).map(drop).unwrap_err();
    let text = payload.downcast_ref::<String>().expect("a text");
    assert!(text.contains("drew other random numbers"), "{text}");
    assert!(
        text.contains("This backward has changed no weight"),
        "{text}"
    );
    let model = optim.disarm(model);
    Weights::of::<R, _>(&model).assert_same(&before, "refused");
}

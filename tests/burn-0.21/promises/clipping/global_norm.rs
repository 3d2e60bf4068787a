//! Clipping by the global norm in two backward passes.

use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::tensor::Distribution;
use burn_gradient_release::TwoPasses;

use super::by_hand::{clip_global, global_norm};
use crate::harness::prelude::*;

const STEPS: u64 = 8;

fn plain_grads<S: Scenario>(model: &S::Model<P>, step: u64) -> GradientsParams {
    let loss = S::loss::<P>(model, Size::Small, step);
    gradients(model, loss)
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
            (norm, Weights::of(&plain))
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
            Weights::of(&model).assert_same(expected, &context);
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
            let mut grads = gradients(&plain, plain.loss(step));
            clip_global::<P, _>(&plain, &mut grads, max_norm);
            plain = plain_optim.step(RATE, plain, grads);
            expected.push(Weights::of(&plain));
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
                Weights::of(&model).assert_same(expected, context);
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
        Weights::of(&model)
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
            sums.accumulate(&plain, gradients(&plain, last(&plain, 10 * step + held)));
            let mut grads = sums.grads();
            let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
            assert!(norm > max_norm, "{norm}");
            plain = plain_optim.step(RATE, plain, grads);

            for micro in 0..held {
                model = release_sums.arm(model);
                let grads = gradients(&model, S::loss::<R>(&model, Size::Small, 10 * step + micro));
                release_sums.accumulate(&model, grads);
            }
            let sums = release_sums.grads();
            let last = |model: &_| released_last(model, 10 * step + held);
            (model, _) = optim.try_two_passes(RATE, model, sums, last).unwrap();
            Weights::of(&model).assert_same(&Weights::of(&plain), step);
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

/// By their losses, or by what they draw. Weights and running means are those of before both passes.
#[test]
fn passes_that_differ_are_refused() {
    let mut optim = clipping::<Noisy<R>>();
    let model = Noisy::<R>::new();
    let sums = gradients(&model, model.loss(0));
    // Burn keeps the last update of running statistics aside until they are read.
    let settled = |model: &Noisy<R>| {
        model.norm.running_mean.value_sync();
        model.norm.running_var.value_sync();
        Weights::of(model)
    };
    let (before, held) = (settled(&model), sums.len());
    let mut draws = 0;
    let differs = |model: &Noisy<R>| {
        draws += 1;
        model.loss(draws)
    };
    let stepped = optim.try_two_passes(RATE, model, sums, differs);
    let (model, sums) = refused!(stepped, ReleaseError::NotRepeatable);
    assert_eq!(sums.len(), held, "handed back");

    // The loss is the same, and the last draw is missing.
    let mut is_first = true;
    let draws_less = |model: &Noisy<R>| {
        let loss = model.loss(0);
        if std::mem::take(&mut is_first) {
            draw();
        }
        loss
    };
    let stepped = optim.try_two_passes(RATE, model, sums, draws_less);
    let (model, _) = refused!(stepped, ReleaseError::NotRepeatable);
    settled(&model).assert_same(&before, "refused");
    let (model, _) = optim.two_passes(RATE, model, |model| model.loss(0));
    Weights::of(&model).assert_moved(&before, "after the refusal");
}

/// By hand, as the Learner does it, backward is inside of the passes, and would step with the second
/// loss. A pass that draws less has the same loss, which does not depend on it.
#[test]
fn passes_by_hand_that_differ_are_refused() {
    let start = Start::new::<Mlp>(Size::Small);
    let policies = [Recompute::None, Recompute::Automatic];
    for (recompute, draws_less) in policies
        .into_iter()
        .flat_map(|of| [(of, false), (of, true)])
    {
        let mut optim = clipping().with_recompute(recompute);
        let model = start.model::<Mlp, R>();
        let before = Weights::of(&model);
        let armed = optim.try_arm_to_measure(model, GradientsParams::new());
        let model = armed.expect("nothing is armed");
        let pass = |model: &_, is_first: bool| {
            if is_first && draws_less {
                draw();
            }
            let step = u64::from(!is_first && !draws_less);
            let grads = gradients(model, Mlp::loss::<R>(model, Size::Small, step));
            // What is drawn later changes no gradient.
            draw();
            grads
        };
        let (grads, mut passes) = TwoPasses::first(&model, || pass(&model, true));
        optim.try_measured(&model, grads).expect("measured");
        let model = optim.arm(RATE, model);
        let text = panic_of(|| passes.second(model.clone(), || pass(&model, false)));
        for part in [
            &ReleaseError::NotRepeatable.to_string(),
            "This backward has changed no weight",
        ] {
            assert!(text.contains(part), "{recompute:?}, {draws_less}: {text}");
        }
        let model = optim.disarm(model);
        Weights::of(&model).assert_same(&before, "refused");
        let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, 0);
        let (model, _) = optim.two_passes(RATE, model, loss);
        Weights::of(&model).assert_moved(&before, "after the refusal");
    }
}

/// A random tensor that changes no loss.
fn draw() -> Tensor<R, 1> {
    Tensor::random([4], Distribution::Default, &Default::default())
}

fn clipping<M: AutodiffModule<R>>() -> ReleaseOptimizer<Sgd<Flex>, M, R> {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 })
}

/// Sums are handed back, and the forward pass does not run, where the rate alone refuses.
#[test]
fn a_wrong_rate_is_refused_before_the_first_pass() {
    use ReleaseError::{OutOfRange, OwnedLearningRate};

    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let sums = gradients(&model, Mlp::loss::<R>(&model, Size::Small, 0));
    let forward = |_: &_| unreachable!("refused before");
    let mut optim = clipping().with_learning_rate(RATE);
    let stepped = optim.try_two_passes(2.0 * RATE, model, sums, forward);
    let (model, sums) = refused!(stepped,
        OwnedLearningRate { owned, given } if [*owned, *given] == [RATE, 2.0 * RATE]);
    let stepped = clipping().try_two_passes(-RATE, model, sums, forward);
    let (_, sums) = refused!(stepped,
        OutOfRange { setting, value } if setting == "the learning rate" && *value == -RATE);
    assert!(!sums.is_empty(), "handed back");
}

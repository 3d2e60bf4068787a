//! Clipping by the global norm in two backward passes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::Flex;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_gradient_release::{
    NormClipping, Outcome, Recompute, ReleaseAccumulator, ReleaseError, TwoPasses,
    WithGradientRelease, ZClipConfig,
};

use super::by_hand::{clip_global, global_norm, scale};
use crate::ALLOCATIONS;
use crate::harness::memory::alone;
use crate::harness::models::{Cnn, Mlp, Recurrent, Scenario, Size, Tied, Transformer, Views};
use crate::harness::run::{RATE, Start, assert_all_released, trainable};
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Recipe, Release, Weights, noise};

type P = Plain<Flex>;
type R = Release<Flex>;

const STEPS: u64 = 20;

/// A norm that some steps of the run exceed and some do not.
fn median_norm<S: Scenario>(start: &Start, recipe: &impl Recipe) -> f64 {
    let mut model = start.model::<S, P>();
    let mut optim = recipe.make::<P, S::Model<P>>();
    let mut norms = Vec::new();
    for step in 0..STEPS {
        let loss = S::loss::<P>(&model, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &model);
        norms.push(global_norm::<P, _>(&model, &mut grads));
        model = optim.step(RATE, model, grads);
    }
    norms.sort_by(f64::total_cmp);
    norms[norms.len() / 2]
}

fn equals_plain<S: Scenario>(recipe: &impl Recipe, recompute: Recompute) {
    let start = Start::new::<S>(Size::Small);
    let max_norm = median_norm::<S>(&start, recipe);
    let mut plain = start.model::<S, P>();
    let mut plain_optim = recipe.make::<P, S::Model<P>>();
    let mut model = start.model::<S, R>();
    let optim = recipe.make::<R, S::Model<R>>().with_gradient_release();
    let mut optim = optim
        .with_recompute(recompute)
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm });
    let parameters = trainable::<R, _>(&model);
    let mut clipped = 0;
    for step in 0..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
        plain = plain_optim.step(RATE, plain, grads);

        (model, _) = optim.two_passes(RATE, model, |model| S::loss::<R>(model, Size::Small, step));
        let context = format!("{recompute:?}, step {step}");
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), context);
        let report = optim.last_step().unwrap();
        assert_all_released(&report, parameters);
        assert_eq!(report.grad_norm(), Some(norm));
        clipped += u64::from(report.clip_coefficient().unwrap() < 1.0);
    }
    assert!(
        clipped > 0 && clipped < STEPS,
        "{clipped} steps were clipped"
    );
}

#[test]
fn equals_plain_burn_clipped_by_hand() {
    let adamw = AdamWConfig::new();
    equals_plain::<Mlp>(&adamw, Recompute::None);
    equals_plain::<Transformer>(&adamw, Recompute::None);
    equals_plain::<Tied>(&adamw, Recompute::None);
    equals_plain::<Recurrent>(&adamw, Recompute::None);
    equals_plain::<Views>(&adamw, Recompute::None);
    equals_plain::<Transformer>(&SgdConfig::new(), Recompute::None);
}

#[test]
fn equals_plain_burn_with_recomputed_activations() {
    equals_plain::<Transformer>(&AdamWConfig::new(), Recompute::Automatic);
    equals_plain::<Recurrent>(&AdamWConfig::new(), Recompute::Automatic);
}

/// The running means of batch norm are updated once.
#[test]
fn running_means_are_those_of_one_pass() {
    equals_plain::<Cnn>(&AdamWConfig::new(), Recompute::None);
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
        Self {
            layers: (0..3)
                .map(|_| LinearConfig::new(8, 8).init(&device))
                .collect(),
            norm: BatchNormConfig::new(8).init(&device),
            dropout: DropoutConfig::new(0.4).init(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let mut x = noise::<B, 2>(step, [16, 8], &device);
        for layer in &self.layers {
            x = self
                .norm
                .forward(self.dropout.forward(layer.forward(x).tanh()));
            x = x.clone() + x.random_like(Distribution::Normal(0.0, 0.1));
        }
        x.square().mean()
    }
}

/// Alone: the random numbers of a backend are the process's.
#[test]
fn both_passes_draw_the_same_and_the_generator_goes_on_as_after_one() {
    alone(
        "clipping::global_norm::both_passes_draw_the_same_and_the_generator_goes_on_as_after_one",
        || {
            let (device, max_norm) = (Default::default(), 0.05);
            let bytes = save::<P, _>(Noisy::<P>::new());
            let mut plain = load::<P, _>(Noisy::new(), &bytes, &device);
            let mut plain_optim = AdamWConfig::new().init();
            P::seed(&device, 3);
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
                let optim = AdamWConfig::new()
                    .init::<R, Noisy<R>>()
                    .with_gradient_release();
                let mut optim = optim
                    .with_recompute(recompute)
                    .with_norm_clipping(NormClipping::GlobalNorm { max_norm });
                R::seed(&device, 3);
                for step in 0..6 {
                    (model, _) = optim.two_passes(RATE, model, |model| model.loss(step));
                    let context = format!("{recompute:?}, step {step}");
                    Weights::of::<R, _>(&model).assert_same(&expected[step as usize], context);
                }
            }
        },
    );
}

#[test]
fn sums_of_micro_batches_are_clipped_as_a_whole() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let max_norm = 0.7;
    let clipping = NormClipping::GlobalNorm { max_norm };
    let mut plain = start.model::<S, P>();
    let mut plain_optim = AdamWConfig::new().init();
    let mut model = start.model::<S, R>();
    let optim = AdamWConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(clipping);
    let mut release_sums = ReleaseAccumulator::new();
    for step in 0..8 {
        let mut sums = GradientsAccumulator::new();
        for micro in 0..3 {
            let loss = S::loss::<P>(&plain, Size::Small, 10 * step + micro);
            sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        }
        let mut grads = sums.grads();
        let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
        assert!(norm > max_norm);
        plain = plain_optim.step(RATE, plain, grads);

        for micro in 0..2 {
            model = release_sums.arm(model);
            let loss = S::loss::<R>(&model, Size::Small, 10 * step + micro);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            release_sums.accumulate(&model, grads);
        }
        let (stepped, _) = optim
            .try_two_passes(RATE, model, release_sums.grads(), |model| {
                S::loss::<R>(model, Size::Small, 10 * step + 2)
            })
            .unwrap();
        model = stepped;
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm));
    }
}

/// A parameter that the last micro-batch does not use is stepped with what is held, which counts.
#[test]
fn sums_without_a_last_gradient_count() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let max_norm = 0.05;
    let mut plain = start.model::<S, P>();
    let mut plain_optim = AdamWConfig::new().init();
    let mut model = start.model::<S, R>();
    let optim = AdamWConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
    for step in 0..4 {
        let mut sums = GradientsAccumulator::new();
        let loss = S::loss::<P>(&plain, Size::Small, step);
        sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        let loss = plain.layers[0].weight.val().square().sum();
        sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        let mut grads = sums.grads();
        let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
        plain = plain_optim.step(RATE, plain, grads);

        let mut sums = ReleaseAccumulator::new();
        model = sums.arm(model);
        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        sums.accumulate(&model, grads);
        (model, _) = optim
            .try_two_passes(RATE, model, sums.grads(), |model| {
                model.layers[0].weight.val().square().sum()
            })
            .unwrap();
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm));
    }
}

/// All gradients are there: one pass is enough.
#[test]
fn an_ordinary_step_is_clipped_as_it_is() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let max_norm = 0.3;
    let mut plain = start.model::<S, P>();
    let mut plain_optim = AdamWConfig::new().init();
    let mut model = start.model::<S, R>();
    let optim = AdamWConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
    for step in 0..STEPS {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        let norm = clip_global::<P, _>(&plain, &mut grads, max_norm);
        plain = plain_optim.step(RATE, plain, grads);

        let loss = S::loss::<R>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norm));
        assert_eq!(report.count(Outcome::Ordinary), trainable::<R, _>(&model));
    }
}

/// Burn's clipping of each gradient by itself comes after it.
#[test]
fn both_kinds_of_clipping_apply() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let own = GradientClippingConfig::Value(0.01);
    let mut plain = start.model::<S, P>();
    let mut plain_optim = SgdConfig::new()
        .with_gradient_clipping(Some(own.clone()))
        .init();
    let mut model = start.model::<S, R>();
    let optim = SgdConfig::new().with_gradient_clipping(Some(own)).init();
    let mut optim = optim
        .with_gradient_release()
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm: 0.1 });
    for step in 0..5 {
        let loss = S::loss::<P>(&plain, Size::Small, step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        clip_global::<P, _>(&plain, &mut grads, 0.1);
        plain = plain_optim.step(RATE, plain, grads);
        (model, _) = optim.two_passes(RATE, model, |model| S::loss::<R>(model, Size::Small, step));
        Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// The rule of the paper, on norms as they come.
struct ZClip {
    warm_up: Vec<f64>,
    mean: f64,
    variance: f64,
}

impl ZClip {
    fn target(&mut self, norm: f64) -> f64 {
        if self.warm_up.len() < 5 {
            self.warm_up.push(norm);
            if self.warm_up.len() == 5 {
                self.mean = self.warm_up.iter().sum::<f64>() / 5.0;
                let squares = self.warm_up.iter().map(|norm| (norm - self.mean).powi(2));
                self.variance = squares.sum::<f64>() / 5.0;
            }
            return norm;
        }
        let z = (norm - self.mean) / self.variance.sqrt();
        let target = match z > 2.5 {
            true => self.mean + 6.25 / z * self.variance.sqrt(),
            false => norm,
        };
        self.mean = 0.97 * self.mean + 0.03 * target;
        self.variance = 0.97 * self.variance + 0.03 * (target - self.mean).powi(2);
        target
    }
}

/// Gradients of a step that is a spike.
fn spiky(step: u64) -> f64 {
    if step % 7 == 6 { 50.0 } else { 1.0 }
}

#[test]
fn zclip_scales_a_spike_on_its_own_step() {
    type S = Transformer;
    let start = Start::new::<S>(Size::Small);
    let mut plain = start.model::<S, P>();
    let mut plain_optim = SgdConfig::new().init();
    let mut model = start.model::<S, R>();
    let optim = SgdConfig::new().init().with_gradient_release();
    let config = ZClipConfig::new().with_warm_up(5);
    let mut optim = optim.with_norm_clipping(NormClipping::ZClip(config));
    let mut rule = ZClip {
        warm_up: Vec::new(),
        mean: 0.0,
        variance: 0.0,
    };
    for step in 0..30 {
        let loss = S::loss::<P>(&plain, Size::Small, step) * spiky(step);
        let mut grads = GradientsParams::from_grads(loss.backward(), &plain);
        let norm = global_norm::<P, _>(&plain, &mut grads);
        let coefficient = rule.target(norm) / norm;
        assert_eq!(
            coefficient < 1.0,
            spiky(step) > 1.0,
            "step {step}: {coefficient}"
        );
        if coefficient < 1.0 {
            scale::<P, _>(&plain, &mut grads, coefficient);
        }
        plain = plain_optim.step(RATE, plain, grads);
        (model, _) = optim.two_passes(RATE, model, |model| {
            S::loss::<R>(model, Size::Small, step) * spiky(step)
        });
        // The averages of both are in 64 bits and the same to a few units in the last place of
        // those.
        Weights::of::<R, _>(&model).assert_near(&Weights::of::<P, _>(&plain), 1e-6, step);
    }
}

/// The first pass keeps no gradient: the peak is that of release without clipping.
#[test]
fn takes_no_more_memory_than_one_pass() {
    alone(
        "clipping::global_norm::takes_no_more_memory_than_one_pass",
        || {
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
                        model = optim.arm(RATE, model);
                        let grads = forward(&model).backward();
                        let grads = GradientsParams::from_grads(grads, &model);
                        model = optim.step(RATE, model, grads);
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
        },
    );
}

/// A forward pass that is another one the second time.
#[test]
fn passes_that_differ_are_refused() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    let model = start.model::<S, R>();
    let before = Weights::of::<R, _>(&model);
    let optim = SgdConfig::new().init().with_gradient_release();
    let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let mut step = 0;
    let refused = optim
        .try_two_passes(RATE, model, GradientsParams::new(), |model| {
            step += 1;
            S::loss::<R>(model, Size::Small, step)
        })
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotRepeatable);
    let model = refused.into_model();
    Weights::of::<R, _>(&model).assert_same(&before, "refused");
    let (model, _) = optim.two_passes(RATE, model, |model| S::loss::<R>(model, Size::Small, 0));
    Weights::of::<R, _>(&model).assert_moved(&before, "after the refusal");
}

/// Runs both passes as the Learner does: backward is inside of the passes, and would step with the
/// second loss.
#[test]
fn passes_by_hand_that_differ_are_refused() {
    type S = Mlp;
    let start = Start::new::<S>(Size::Small);
    for recompute in [Recompute::None, Recompute::Automatic] {
        let model = start.model::<S, R>();
        let before = Weights::of::<R, _>(&model);
        let optim = SgdConfig::new().init().with_gradient_release();
        let optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        let mut optim = optim.with_recompute(recompute);
        let model = optim.try_arm_to_measure(model, GradientsParams::new());
        let model = model.map_err(|refused| refused.to_string()).unwrap();
        let backward = |step| {
            let loss = S::loss::<R>(&model, Size::Small, step);
            GradientsParams::from_grads(loss.backward(), &model)
        };
        let (grads, passes) = TwoPasses::first(&model, || backward(0));
        optim.try_measured(&model, grads).unwrap();
        let model = optim.arm(RATE, model);
        let backward = |step| {
            let loss = S::loss::<R>(&model, Size::Small, step);
            GradientsParams::from_grads(loss.backward(), &model)
        };
        let second = AssertUnwindSafe(|| passes.second(model.clone(), || backward(1)));
        let payload = catch_unwind(second).map(drop).unwrap_err();
        let text = payload.downcast_ref::<String>().expect("a text");
        assert!(
            text.contains(&ReleaseError::NotRepeatable.to_string()),
            "{text}"
        );
        assert!(text.contains("No weight was changed"), "{text}");
        let model = optim.disarm(model);
        Weights::of::<R, _>(&model).assert_same(&before, "refused");
        let (model, _) = optim.two_passes(RATE, model, |model| S::loss::<R>(model, Size::Small, 0));
        Weights::of::<R, _>(&model).assert_moved(&before, "after the refusal");
    }
}

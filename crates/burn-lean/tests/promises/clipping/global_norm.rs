//! Clipping by the global norm in two backward passes.

use burn::module::Lora;
use burn::tensor::Distribution;
use burn_lean::{TwoPasses, try_clip_grad_norm};

use super::by_hand::{clip_global, gradients};
use super::models::{Encoder, Noisy};
use crate::harness::prelude::*;
use crate::harness::synchronized;

const STEPS: usize = 14;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Burn's clipping of each gradient by itself comes after that of all.
fn clipped_by_value() -> ModuleOptimizer {
    let clipping = GradientClippingConfig::Value(0.01);
    SgdConfig::new()
        .with_gradient_clipping(Some(clipping))
        .init()
}

fn grouped() -> ModuleOptimizer {
    let own = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    adamw().with_group(ParamGroup::from_predicate("first"), own.build(), None)
}

fn clipping(optim: ModuleOptimizer, max_norm: f64) -> ReleaseOptimizer {
    optim
        .with_gradient_release()
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm })
}

/// A step of plain Burn, clipped by hand.
struct Step {
    norm: f64,
    /// How many parameters had one.
    gradients: usize,
    after: Bits,
}

fn by_hand<M: Module>(
    mut model: M,
    mut optim: ModuleOptimizer,
    max_norm: f64,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let mut grads = gradients(&model, loss(&model, step));
        let gradients = grads.len();
        let norm = clip_global(&model, &mut grads, max_norm);
        model = optim.step(LR, model, grads);
        let after = synchronized(&model);
        steps.push(Step {
            norm,
            gradients,
            after,
        });
    }
    steps
}

fn median(steps: &[Step]) -> f64 {
    let mut norms: Vec<_> = steps.iter().map(|step| step.norm).collect();
    norms.sort_by(f64::total_cmp);
    norms[norms.len() / 2]
}

/// Whole trajectories, with a norm that some steps exceed and some do not: in two passes, and in
/// ordinary steps. `plain` and `released` come to the same gradients.
fn assert_clipped<M: Module>(
    what: &str,
    device: &Device,
    optim: fn() -> ModuleOptimizer,
    make: impl Fn(&Device) -> M,
    plain: impl Fn(&M, usize) -> Tensor<1>,
    released: impl Fn(&M, usize) -> Tensor<1>,
) {
    let start = || seeded(device, &make);
    let max_norm = median(&by_hand(start(), optim(), f64::INFINITY, &plain));
    let expected = by_hand(start(), optim(), max_norm, &plain);
    let make = || clipping(optim(), max_norm);

    let (mut model, mut release) = (start(), make());
    assert!(release.needs_two_passes());
    let mut clipped = 0;
    for (step, expected) in expected.iter().enumerate() {
        let what = format!("{what} on {device:?}, step {step}");
        // Stopped, saved and begun anew in the middle.
        if step == 7 {
            let states = release.to_record().into_bytes().unwrap();
            let record = OptimizerRecord::from_bytes(states).unwrap();
            release = make().load_record(record);
        }
        (model, _) = release.two_passes(LR, model, |model| released(model, step));
        assert_bits(&synchronized(&model), &expected.after, &what);
        let report = release.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(expected.norm), "{what}");
        let unused = report.outcomes().count() - expected.gradients;
        let found = [Outcome::Released, Outcome::Unused].map(|outcome| report.count(outcome));
        assert_eq!(found, [expected.gradients, unused], "{what}");
        if *device == flex() {
            assert_eq!(report.in_place(), expected.gradients, "{what}");
        }
        clipped += usize::from(report.clip_coefficient().unwrap() < 1.0);
    }
    assert!((1..STEPS).contains(&clipped), "{what}: {clipped} clipped");

    // All gradients are there: one pass is enough.
    let (mut model, mut ordinary) = (start(), make());
    for (step, expected) in expected.iter().enumerate() {
        let what = format!("{what} on {device:?}, ordinary, step {step}");
        let grads = gradients(&model, plain(&model, step));
        model = ordinary.step(LR, model, grads);
        assert_bits(&synchronized(&model), &expected.after, &what);
        let report = ordinary.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(expected.norm), "{what}");
        assert_eq!(report.count(Outcome::AtEnd), expected.gradients);
    }
}

#[test]
fn equals_plain_burn_clipped_by_hand() {
    type Optim = (&'static str, fn() -> ModuleOptimizer);
    let optims: [Optim; 5] = [
        ("AdamW", adamw),
        ("momentum", momentum),
        ("SGD", sgd),
        ("SGD that clips by value", clipped_by_value),
        ("groups", grouped),
    ];
    for device in &devices() {
        // Side by side: each thread has its model and its optimizer.
        std::thread::scope(|scope| {
            for (what, optim) in optims {
                let loss = |model: &Small, step| model.loss(step);
                scope.spawn(move || assert_clipped(what, device, optim, Small::new, loss, loss));
            }
            for (what, optim) in &optims[..3] {
                let loss = |model: &Encoder, step| model.loss(step, device);
                scope.spawn(move || assert_clipped(what, device, *optim, Encoder::new, loss, loss));
            }
            scope.spawn(|| {
                let plain = |model: &Encoder, step| model.loss(step, device);
                let released = |model: &Encoder, step| model.loss_in_scopes(step, device);
                let what = "recomputed activations";
                assert_clipped(what, device, adamw, Encoder::new, plain, released);
            });
            scope.spawn(|| {
                let loss = |model: &Small, step: usize| match step % 2 {
                    0 => model.loss(step),
                    _ => model.tied.val().square().sum(),
                };
                let what = "parameters without a gradient";
                assert_clipped(what, device, adamw, Small::new, loss, loss);
            });
        });
    }
}

/// Alone: the random numbers of a backend are the process's. The loss seeds them, so that plain
/// Burn draws the same.
#[test]
fn running_statistics_are_those_of_one_pass() {
    alone(|| {
        for device in devices() {
            let loss = |model: &Noisy, step| {
                device.seed(step as u64);
                model.loss(step, &device)
            };
            assert_clipped("noise", &device, adamw, Noisy::new, loss, loss);
        }
    });
}

/// Without a seed of the caller's: both passes draw the same, each step others, and what comes
/// after goes on. Alone: the random numbers of a backend are the process's.
#[test]
fn both_passes_draw_the_same() {
    alone(|| {
        for device in devices() {
            draws_the_same(&device, Noisy::loss);
            draws_the_same(&device, Noisy::loss_in_scopes);
        }
    });
}

fn draws_the_same(device: &Device, loss: impl Fn(&Noisy, usize, &Device) -> Tensor<1>) {
    let draw = || {
        let numbers = Tensor::<1>::random([4], Distribution::Uniform(0.0, 1.0), device);
        bits_of(numbers)
    };
    device.seed(3);
    let mut optim = clipping(adamw(), 0.05);
    let mut model = seeded(device, Noisy::new);
    let mut masks = Vec::new();
    for step in 0..6 {
        let before = synchronized(&model);
        let mut drawn = Vec::new();
        (model, _) = optim.two_passes(LR, model, |model| {
            drawn.push(draw());
            loss(model, step, device)
        });
        assert_ne!(synchronized(&model), before);
        assert_eq!(drawn.len(), 2);
        assert_eq!(drawn[0], drawn[1], "step {step}");
        masks.push(drawn.remove(0));
        masks.push(draw());
    }
    masks.sort();
    masks.dedup();
    let found = masks.len();
    assert_eq!(found, 12, "a step draws anew, and so does what follows");
}

/// Alone: the random numbers of a backend are the process's.
#[test]
fn passes_by_hand_are_those_of_two_passes() {
    alone(|| {
        let device = flex();
        let run = |by_hand: bool| {
            device.seed(9);
            let mut model = seeded(&device, Noisy::new);
            let mut optim = clipping(adamw(), 0.05);
            for step in 0..4 {
                if !by_hand {
                    (model, _) = optim.two_passes(LR, model, |model| model.loss(step, &device));
                    continue;
                }
                let loss = |model: &Noisy| model.loss(step, &device);
                let (norm, passes) =
                    TwoPasses::first(&model, || optim.measure(loss(&model), &model));
                assert!(norm.is_finite() && norm.coefficient() < 1.0);
                let loss = passes.second(&model, || loss(&model));
                model = optim.backward(LR, loss, model);
                assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm.norm()));
            }
            synchronized(&model)
        };
        assert_bits(&run(true), &run(false), "by hand");
    });
}

/// The sums of the micro-batches of a step are clipped as a whole. So many parameters are stepped
/// inside the last backward; the others with what is held.
fn assert_sums_clipped(
    what: &str,
    mut plain: Small,
    max_norm: f64,
    micro_batches: &[fn(&Small, usize) -> Tensor<1>],
    released: usize,
) {
    let (last, earlier) = micro_batches.split_last().unwrap();
    let mut plain_optim = adamw();
    let mut model = plain.clone();
    let mut optim = clipping(adamw(), max_norm);
    let mut clipped = 0;
    for step in 0..8 {
        let mut sums = GradientsAccumulator::new();
        for loss in micro_batches {
            sums.accumulate(&plain, gradients(&plain, loss(&plain, step)));
        }
        let mut grads = sums.grads();
        let norm = clip_global(&plain, &mut grads, max_norm);
        clipped += usize::from(norm > max_norm);
        plain = plain_optim.step(LR, plain, grads);

        for loss in earlier {
            optim.accumulate(loss(&model, step), &model);
        }
        (model, _) = optim.two_passes(LR, model, |model| last(model, step));
        assert_bits(&bits(&model), &bits(&plain), what);
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norm), "{what}, step {step}");
        assert_eq!(report.count(Outcome::Released), released, "{what}");
        let held = report.outcomes().count() - released;
        assert_eq!(report.count(Outcome::AtEnd), held, "{what}");
    }
    assert!(clipped > 0, "{what}");
}

#[test]
fn sums_of_micro_batches_are_clipped_as_a_whole() {
    let micro_batches: [fn(&Small, usize) -> Tensor<1>; 3] = [
        |model, step| model.loss(10 * step),
        |model, step| model.loss(10 * step + 1),
        |model, step| model.loss(10 * step + 2),
    ];
    assert_sums_clipped("all gradients", small(), 0.7, &micro_batches, PARAMS);
    // LoRA's factors are clipped, and the adapters stay.
    let lora = numbered_from(small().apply_lora(Lora::new(2, 4.0)), 500);
    let factors = grads_of(&lora, 0).len();
    assert_sums_clipped("adapters", lora, 0.05, &micro_batches[..2], factors);
    let one_weight_last: [fn(&Small, usize) -> Tensor<1>; 2] = [
        |model, step| model.loss(step),
        |model, _| model.first.weight.val().square().sum(),
    ];
    assert_sums_clipped("one weight last", small(), 0.05, &one_weight_last, 1);
}

/// The function for a loop without gradient release. What it makes of finite gradients is compared in
/// `range` and `edges`.
#[test]
fn plain_gradients_that_are_not_finite_are_left_alone() {
    let model = small();
    let loss = model.loss(0) + model.second.weight.val().sum() * f64::NAN;
    let mut grads = gradients(&model, loss);
    let before = grads.get::<2>(model.first.weight.id).unwrap();
    let error = try_clip_grad_norm(&model, &mut grads, 1.0).unwrap_err();
    let is_named =
        matches!(&error, ReleaseError::NonFinite { path, .. } if path == "second.weight");
    assert!(is_named, "{error}");
    let after = grads.get::<2>(model.first.weight.id).unwrap();
    assert_eq!(after.into_data(), before.into_data());
    let mut grads = grads_of(&model, 0);
    for max_norm in [0.0, -1.0, f64::NAN] {
        let error = try_clip_grad_norm(&model, &mut grads, max_norm).unwrap_err();
        assert_error!(error, OutOfRange);
    }
}

/// A forward pass that is another one the second time.
#[test]
fn passes_that_differ_are_refused() {
    let mut optim = clipping(adamw(), 1.0);
    let model = seeded(&flex(), Noisy::new);
    let before = synchronized(&model);
    let mut step = 0;
    let refused = optim
        .try_two_passes(LR, model, |model| {
            step += 1;
            model.loss(step, &flex())
        })
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotRepeatable);
    let model = refused.into_model();
    assert_bits(&synchronized(&model), &before, "refused");
}

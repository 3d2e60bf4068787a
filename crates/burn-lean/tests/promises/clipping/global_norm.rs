//! Clipping by the global norm in two backward passes.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig,
};
use burn::tensor::{Device, Distribution, Tensor};
use burn_lean::{
    FirstPass, NormClipping, Outcome, ReleaseAccumulator, ReleaseError, ReleaseOptimizer,
    TwoPasses, WithGradientRelease, ZClipConfig, clip_grad_norm, try_clip_grad_norm,
};

use super::by_hand::{clip_global, global_norm, scale};
use super::models::{Encoder, Noisy};
use crate::adapters::{FACTORS, all, lora};
use crate::harness::{
    Bits, LR, adamw, alone, assert_bits, bits, devices, flex, momentum, release_step, seeded,
};
use crate::memory::{deep, forward, peak_of};
use crate::small::{Small, numbered_from, small};

const STEPS: usize = 20;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

fn clipping(max_norm: f64) -> NormClipping {
    NormClipping::GlobalNorm { max_norm }
}

/// Plain Burn, clipped by hand: norms, and the bits after each step.
fn by_hand<M: Module>(
    mut model: M,
    optim: &mut ModuleOptimizer,
    max_norm: f64,
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> (Vec<f64>, Vec<Bits>) {
    let (mut norms, mut run) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let mut grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        norms.push(clip_global(&model, &mut grads, max_norm));
        model = optim.step(LR, model, grads);
        run.push(synchronized(&model));
    }
    (norms, run)
}

/// The bits, running statistics too: Burn keeps an update of those aside.
fn synchronized<M: Module>(model: &M) -> Bits {
    let _ = model.valid();
    bits(model)
}

fn median(mut norms: Vec<f64>) -> f64 {
    norms.sort_by(f64::total_cmp);
    norms[norms.len() / 2]
}

/// Whole trajectories, with a norm that some steps exceed and some do not.
fn assert_clipped<M: Module>(
    device: &Device,
    optim: fn() -> ModuleOptimizer,
    make: impl Fn(&Device) -> M,
    plain: impl Fn(&M, usize) -> Tensor<1>,
    released: impl Fn(&M, usize) -> Tensor<1>,
) {
    let start = || seeded(device, &make);
    let (norms, _) = by_hand(start(), &mut optim(), f64::INFINITY, &plain);
    let max_norm = median(norms);
    let (norms, expected) = by_hand(start(), &mut optim(), max_norm, &plain);
    let mut release = optim()
        .with_gradient_release()
        .with_norm_clipping(clipping(max_norm));
    assert!(release.needs_two_passes());
    let mut model = start();
    let mut clipped = 0;
    for (step, expected) in expected.iter().enumerate() {
        (model, _) = release.two_passes(LR, model, |model| released(model, step));
        assert_bits(
            &synchronized(&model),
            expected,
            &format!("{device:?}, step {step}"),
        );
        let report = release.last_step().unwrap();
        let stepped = report.count(Outcome::Released) + report.count(Outcome::Unused);
        assert_eq!(stepped, report.outcomes().count(), "{report:?}");
        assert!(report.is_plain());
        if *device == flex() {
            assert_eq!(report.in_place(), report.count(Outcome::Released));
        }
        assert_eq!(report.grad_norm(), Some(norms[step]));
        clipped += usize::from(report.clip_coefficient().unwrap() < 1.0);
    }
    assert!(
        0 < clipped && clipped < STEPS,
        "{clipped} steps were clipped"
    );
}

#[test]
fn equals_plain_burn_clipped_by_hand() {
    for device in devices() {
        for optim in [adamw, momentum, sgd] {
            let loss = |model: &Small, step| model.loss(step);
            assert_clipped(&device, optim, Small::new, loss, loss);
            let loss = |model: &Encoder, step| model.loss(step, &device);
            assert_clipped(&device, optim, Encoder::new, loss, loss);
        }
    }
}

#[test]
fn equals_plain_burn_with_recomputed_activations() {
    for device in devices() {
        assert_clipped(
            &device,
            adamw,
            Encoder::new,
            |model, step| model.loss(step, &device),
            |model, step| model.loss_in_scopes(step, &device),
        );
    }
}

/// Alone: the random numbers of a backend are the process's. The loss seeds them, so that plain
/// Burn draws the same.
#[test]
fn running_statistics_are_those_of_one_pass() {
    alone(
        "clipping::global_norm::running_statistics_are_those_of_one_pass",
        || {
            for device in devices() {
                let loss = |model: &Noisy, step| {
                    device.seed(step as u64);
                    model.loss(step, &device)
                };
                assert_clipped(&device, adamw, Noisy::new, loss, loss);
            }
        },
    );
}

/// Without a seed of the caller's: both passes draw the same, each step others, and what comes
/// after goes on. Alone: the random numbers of a backend are the process's.
#[test]
fn both_passes_draw_the_same() {
    alone("clipping::global_norm::both_passes_draw_the_same", || {
        for device in devices() {
            for in_scopes in [false, true] {
                device.seed(3);
                let optim = adamw().with_gradient_release();
                let mut optim = optim.with_norm_clipping(clipping(0.05));
                let mut model = seeded(&device, Noisy::new);
                let mut masks = Vec::new();
                for step in 0..6 {
                    let before = synchronized(&model);
                    let mut drawn = Vec::new();
                    (model, _) = optim.two_passes(LR, model, |model| {
                        drawn.push(draw(&device));
                        match in_scopes {
                            true => model.loss_in_scopes(step, &device),
                            false => model.loss(step, &device),
                        }
                    });
                    assert_ne!(synchronized(&model), before);
                    assert_eq!(drawn.len(), 2);
                    assert_eq!(drawn[0], drawn[1], "step {step}");
                    masks.push(drawn.remove(0));
                    masks.push(draw(&device));
                }
                masks.sort();
                masks.dedup();
                assert_eq!(
                    masks.len(),
                    12,
                    "a step draws anew, and so does what follows"
                );
            }
        }
    });
}

fn draw(device: &Device) -> Vec<u32> {
    let numbers = Tensor::<1>::random([4], Distribution::Uniform(0.0, 1.0), device);
    crate::small::bits_of(numbers)
}

#[test]
fn sums_of_micro_batches_are_clipped_as_a_whole() {
    let max_norm = 0.7;
    let mut plain = small();
    let mut plain_optim = adamw();
    let mut model = small();
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(max_norm));
    let mut release_sums = ReleaseAccumulator::new();
    let mut clipped = 0;
    for step in 0..8 {
        let mut sums = GradientsAccumulator::new();
        for micro in 0..3 {
            let loss = plain.loss(10 * step + micro);
            sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        }
        let mut grads = sums.grads();
        let norm = clip_global(&plain, &mut grads, max_norm);
        clipped += usize::from(norm > max_norm);
        plain = plain_optim.step(LR, plain, grads);

        for micro in 0..2 {
            model = release_sums.arm(model);
            let loss = model.loss(10 * step + micro);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            release_sums.accumulate(&model, grads);
        }
        let sums = release_sums.grads();
        (model, _) = optim
            .try_two_passes(LR, model, sums, |model| model.loss(10 * step + 2))
            .unwrap();
        assert_bits(&bits(&model), &bits(&plain), &format!("step {step}"));
        assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm));
    }
    assert!(clipped > 0);
}

/// A parameter that the last micro-batch does not use is stepped with what is held, which counts.
#[test]
fn sums_without_a_last_gradient_count() {
    let max_norm = 0.05;
    let mut plain = small();
    let mut plain_optim = adamw();
    let mut model = small();
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(max_norm));
    let last = |model: &Small| model.first.weight.val().square().sum();
    for step in 0..4 {
        let mut sums = GradientsAccumulator::new();
        for loss in [plain.loss(step), last(&plain)] {
            sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        }
        let mut grads = sums.grads();
        let norm = clip_global(&plain, &mut grads, max_norm);
        plain = plain_optim.step(LR, plain, grads);

        let mut sums = ReleaseAccumulator::new();
        model = sums.arm(model);
        let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
        sums.accumulate(&model, grads);
        (model, _) = optim.try_two_passes(LR, model, sums.grads(), last).unwrap();
        assert_bits(&bits(&model), &bits(&plain), &format!("step {step}"));
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norm));
        assert_eq!(report.count(Outcome::Released), 1);
        assert_eq!(report.count(Outcome::Ordinary), 4);
    }
}

/// All gradients are there: one pass is enough.
#[test]
fn an_ordinary_step_is_clipped_as_it_is() {
    let device = flex();
    let loss = |model: &Encoder, step| model.loss(step, &device);
    let (norms, expected) = by_hand(seeded(&device, Encoder::new), &mut adamw(), 0.3, loss);
    let mut model = seeded(&device, Encoder::new);
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(0.3));
    let mut free = seeded(&device, Encoder::new);
    let mut plain = adamw();
    for (step, expected) in expected.iter().enumerate() {
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        model = optim.step(LR, model, grads);
        assert_bits(&bits(&model), expected, &format!("step {step}"));
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norms[step]));
        assert_eq!(report.count(Outcome::Ordinary), report.outcomes().count());

        // The function for a loop without gradient release.
        let mut grads = GradientsParams::from_grads(loss(&free, step).backward(), &free);
        assert_eq!(clip_grad_norm(&free, &mut grads, 0.3), norms[step]);
        free = plain.step(LR, free, grads);
        assert_bits(&bits(&free), expected, &format!("plain, step {step}"));
    }
}

#[test]
fn plain_gradients_without_a_finite_norm_are_left_alone() {
    let model = small();
    let loss = model.loss(0) + model.second.weight.val().sum() * f64::NAN;
    let mut grads = GradientsParams::from_grads(loss.backward(), &model);
    let before = grads.get::<2>(model.first.weight.id).unwrap();
    let error = try_clip_grad_norm(&model, &mut grads, 1.0).unwrap_err();
    assert!(
        matches!(&error, ReleaseError::NonFinite { path, .. } if path == "second.weight"),
        "{error}"
    );
    let after = grads.get::<2>(model.first.weight.id).unwrap();
    assert_eq!(after.into_data(), before.into_data());
    let mut grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    for max_norm in [0.0, -1.0, f64::NAN] {
        let error = try_clip_grad_norm(&model, &mut grads, max_norm).unwrap_err();
        assert!(matches!(error, ReleaseError::OutOfRange { .. }), "{error}");
    }
}

/// Burn's clipping of each gradient by itself comes after it.
#[test]
fn both_kinds_of_clipping_apply() {
    let optim = || {
        SgdConfig::new()
            .with_gradient_clipping(Some(GradientClippingConfig::Value(0.01)))
            .init()
    };
    let loss = |model: &Small, step: usize| model.loss(step);
    let (_, expected) = by_hand(small(), &mut optim(), 0.1, loss);
    let mut model = small();
    let mut optim = optim()
        .with_gradient_release()
        .with_norm_clipping(clipping(0.1));
    for (step, expected) in expected.iter().enumerate() {
        (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
        assert_bits(&bits(&model), expected, &format!("step {step}"));
    }
}

/// Stopped, saved and begun anew in the middle, and handed to plain Burn and back.
#[test]
fn a_resumed_run_has_the_same_bits() {
    let loss = |model: &Small, step: usize| model.loss(step);
    let (_, expected) = by_hand(small(), &mut adamw(), 0.2, loss);
    let mut model = small();
    let make = || {
        adamw()
            .with_gradient_release()
            .with_first_pass(FirstPass::Exact)
            .with_norm_clipping(clipping(0.2))
    };
    let mut optim = make();
    for (step, expected) in expected.iter().enumerate() {
        if step == 7 {
            let states = optim.to_record().into_bytes().unwrap();
            optim = make().load_record(OptimizerRecord::from_bytes(states).unwrap());
        }
        (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
        assert_bits(&bits(&model), expected, &format!("step {step}"));
    }
}

/// The rule of the paper, on norms as they come.
#[derive(Default)]
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
        let z = (norm - self.mean) / (self.variance.sqrt() + 1e-6);
        let target = match z > 2.5 {
            true => self.mean + 2.5 * 2.5 / z * self.variance.sqrt(),
            false => norm,
        };
        self.mean = 0.97 * self.mean + (1.0 - 0.97) * target;
        self.variance = 0.97 * self.variance + (1.0 - 0.97) * (target - self.mean).powi(2);
        target
    }
}

/// Of a step that is a spike.
fn spiky(step: usize) -> f64 {
    if step % 7 == 6 { 50.0 } else { 1.0 }
}

fn zclip() -> ReleaseOptimizer {
    let config = ZClipConfig::new().with_warm_up(5);
    sgd()
        .with_gradient_release()
        .with_norm_clipping(NormClipping::ZClip(config))
}

#[test]
fn zclip_scales_a_spike_on_its_own_step() {
    let loss = |model: &Small, step: usize| model.loss(step % 3) * spiky(step);
    let (mut plain, mut plain_optim) = (small(), sgd());
    let (mut model, mut optim) = (small(), zclip());
    let (mut ordinary, mut ordinary_optim) = (small(), zclip());
    let mut rule = ZClip::default();
    for step in 0..30 {
        let mut grads = GradientsParams::from_grads(loss(&plain, step).backward(), &plain);
        let norm = global_norm(&plain, &grads);
        let coefficient = rule.target(norm) / norm;
        assert_eq!(coefficient < 1.0, spiky(step) > 1.0, "step {step}");
        if coefficient < 1.0 {
            scale(&plain, &mut grads, coefficient);
        }
        plain = plain_optim.step(LR, plain, grads);

        // A resume from JSON, which the averages survive bit for bit.
        if step == 13 {
            let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
            optim = zclip().load_gradient_record(serde_json::from_str(&saved).unwrap());
        }
        (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
        assert_bits(&bits(&model), &bits(&plain), &format!("step {step}"));
        let grads = GradientsParams::from_grads(loss(&ordinary, step).backward(), &ordinary);
        ordinary = ordinary_optim.step(LR, ordinary, grads);
        assert_bits(&bits(&ordinary), &bits(&plain), &format!("unarmed, {step}"));
    }
}

struct Shrink;

impl ModuleMapper for Shrink {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weight| (weight * 0.05).detach().require_grad())
    }
}

/// Numbers and bytes in one test: the first pass keeps no gradient.
#[test]
fn takes_no_more_memory_than_one_pass() {
    alone(
        "clipping::global_norm::takes_no_more_memory_than_one_pass",
        || {
            let optims: [fn() -> ModuleOptimizer; 3] = [adamw, momentum, sgd];
            for optim in optims {
                let max_norm = 1e-3;
                // Residual blocks add up: smaller weights keep the squares finite.
                let make = || seeded(&flex(), deep).map(&mut Shrink);
                let loss = |model: &Vec<_>, step| forward(model, 2, step);
                let (_, expected) = {
                    let (mut model, mut optim) = (make(), optim());
                    let mut run = Vec::new();
                    for step in 0..4 {
                        let grads = loss(&model, step).backward();
                        let mut grads = GradientsParams::from_grads(grads, &model);
                        assert!(clip_global(&model, &mut grads, max_norm) > max_norm);
                        model = optim.step(LR, model, grads);
                        run.push(bits(&model));
                    }
                    (model, run)
                };
                let peaks = |is_clipped: bool| {
                    let mut model = make();
                    let mut optim = optim().with_gradient_release();
                    if is_clipped {
                        optim = optim.with_norm_clipping(clipping(max_norm));
                    }
                    let mut peaks = Vec::new();
                    for (step, expected) in expected.iter().enumerate() {
                        let (next, peak) = peak_of(|| match is_clipped {
                            true => optim.two_passes(LR, model, |model| loss(model, step)).0,
                            false => release_step(model, &mut optim, |model| loss(model, step)),
                        });
                        model = next;
                        peaks.push(peak);
                        if is_clipped {
                            assert_bits(&bits(&model), expected, "clipped");
                        }
                    }
                    peaks
                };
                let (without, with) = (peaks(false), peaks(true));
                println!("{without:?} bytes without clipping, {with:?} with");
                for (with, without) in with.iter().zip(&without) {
                    assert!(
                        *with as f64 <= 1.02 * *without as f64,
                        "{with} bytes, {without} without"
                    );
                }
            }
        },
    );
}

/// A forward pass that is another one the second time.
#[test]
fn passes_that_differ_are_refused() {
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(1.0));
    let model = seeded(&flex(), Noisy::new);
    let before = synchronized(&model);
    let mut step = 0;
    let refused = optim
        .try_two_passes(LR, model, GradientsParams::new(), |model| {
            step += 1;
            model.loss(step, &flex())
        })
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotRepeatable);
    let model = refused.into_model();
    assert!(!optim.is_armed());
    assert_bits(&synchronized(&model), &before, "refused");
}

/// The sums of earlier micro-batches come back, and the step can be tried again.
#[test]
fn a_refusal_hands_the_sums_back() {
    let clipped = || {
        adamw()
            .with_gradient_release()
            .with_norm_clipping(clipping(0.1))
    };
    let sum_of = |model: Small| {
        let mut sums = ReleaseAccumulator::new();
        let model = sums.arm(model);
        let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
        sums.accumulate(&model, grads);
        (model, sums.grads())
    };
    let (model, sums) = sum_of(small());
    let mut optim = clipped();
    let (expected, _) = optim
        .try_two_passes(LR, model, sums, |model| model.loss(1))
        .unwrap();

    let (model, sums) = sum_of(small());
    let mut optim = clipped();
    let refused = optim
        .try_two_passes(LR, model, sums, |model| model.loss(1) * f64::NAN)
        .unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::NonFinite { .. }));
    let (model, sums) = refused.into_given();
    assert_eq!(sums.len(), crate::small::PARAMS);
    let (model, _) = optim
        .try_two_passes(LR, model, sums, |model| model.loss(1))
        .unwrap();
    assert_bits(&bits(&model), &bits(&expected), "tried again");
}

/// Sparse gradients: of a parameter that one step uses and another does not.
#[test]
fn parameters_without_a_gradient_do_not_count() {
    let loss = |model: &Small, step: usize| match step % 2 {
        0 => model.loss(step),
        _ => model.tied.val().square().sum(),
    };
    let (norms, expected) = by_hand(small(), &mut adamw(), 0.2, loss);
    let mut model = small();
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(0.2));
    for (step, expected) in expected.iter().enumerate() {
        (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
        assert_bits(&bits(&model), expected, &format!("step {step}"));
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norms[step]));
        assert_eq!(report.count(Outcome::Unused), 4 * (step % 2));
    }
}

/// 1e20, whose square is infinite in 32 bits, 1e-20, whose square is zero, and zero.
#[test]
fn gradients_at_the_ends_of_the_range() {
    let optim = || {
        sgd()
            .with_gradient_release()
            .with_norm_clipping(clipping(0.5))
    };
    let before = bits(&small());
    let refused = optim()
        .try_two_passes(LR, small(), GradientsParams::new(), |model| {
            model.loss(0) * 1e20 / 1e-3
        })
        .unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::NonFinite { .. }));
    assert_eq!(bits(&refused.into_model()), before);
    for factor in [0.0, 1e-20] {
        let mut optim = optim();
        let (model, _) = optim.two_passes(LR, small(), |model| model.loss(0) * factor);
        let report = optim.last_step().unwrap();
        assert!(report.grad_norm().unwrap() < 1e-15);
        assert_eq!(report.clip_coefficient(), Some(1.0));
        assert_eq!(report.count(Outcome::Released), crate::small::PARAMS);
        assert_eq!(bits(&model), before);
    }
}

/// The passes by hand, with [`TwoPasses`] to make them the same.
#[test]
fn passes_by_hand_are_those_of_two_passes() {
    alone(
        "clipping::global_norm::passes_by_hand_are_those_of_two_passes",
        || {
            let device = flex();
            let optim = || {
                adamw()
                    .with_gradient_release()
                    .with_norm_clipping(clipping(0.05))
            };
            let run = |by_hand: bool| {
                device.seed(9);
                let (mut model, mut optim) = (seeded(&device, Noisy::new), optim());
                for step in 0..4 {
                    if !by_hand {
                        (model, _) = optim.two_passes(LR, model, |model| model.loss(step, &device));
                        continue;
                    }
                    model = optim
                        .try_arm_to_measure(model, GradientsParams::new())
                        .unwrap();
                    let pass = |model: &Noisy| {
                        let grads = model.loss(step, &device).backward();
                        GradientsParams::from_grads(grads, model)
                    };
                    let (grads, passes) = TwoPasses::first(&model, || pass(&model));
                    let norm = optim.try_measured(&model, grads).unwrap();
                    assert!(norm.is_finite() && norm.coefficient() < 1.0);
                    model = optim.arm(LR, model);
                    let grads = passes.second(&model, || pass(&model));
                    model = optim.step(LR, model, grads);
                    assert_eq!(optim.last_step().unwrap().grad_norm(), Some(norm.norm()));
                }
                synchronized(&model)
            };
            assert_bits(&run(true), &run(false), "by hand");
        },
    );
}

/// A model of several groups, and one whose parameters no pass can tell by their ranks.
#[test]
fn groups_are_stepped_each_its_own_way() {
    use burn::module::ParamGroup;
    let grouped = || {
        let own = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        AdamWConfig::new()
            .init()
            .with_group(ParamGroup::from_predicate("first"), own.build(), None)
    };
    let loss = |model: &Small, step: usize| model.loss(step);
    let start = || numbered_from(small(), 77);
    let (_, expected) = by_hand(start(), &mut grouped(), 0.1, loss);
    let mut model = start();
    let mut optim = grouped()
        .with_gradient_release()
        .with_norm_clipping(clipping(0.1));
    for (step, expected) in expected.iter().enumerate() {
        (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
        assert_bits(&bits(&model), expected, &format!("step {step}"));
    }
}

/// LoRA's factors are clipped, and the adapters stay; with sums of micro-batches, too.
#[test]
fn adapters_are_clipped_as_in_plain_burn() {
    let mut plain = lora();
    let mut model = plain.clone();
    let mut plain_optim = adamw();
    let mut optim = adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(0.05));
    for step in 0..6 {
        let mut sums = GradientsAccumulator::new();
        for micro in 0..2 {
            let loss = plain.loss(10 * step + micro);
            sums.accumulate(&plain, GradientsParams::from_grads(loss.backward(), &plain));
        }
        let mut grads = sums.grads();
        let norm = clip_global(&plain, &mut grads, 0.05);
        assert!(norm > 0.05);
        plain = plain_optim.step(LR, plain, grads);

        let loss = model.loss(10 * step);
        let sums = GradientsParams::from_grads(loss.backward(), &model);
        (model, _) = optim
            .try_two_passes(LR, model, sums, |model| model.loss(10 * step + 1))
            .unwrap();
        assert_eq!(all(&model), all(&plain), "step {step}");
        let report = optim.last_step().unwrap();
        assert_eq!(report.grad_norm(), Some(norm));
        assert_eq!(report.count(Outcome::Released), FACTORS);
    }
}

/// Each thread with its model and its optimizer.
#[test]
fn threads_are_no_worse_than_one() {
    let loss = |model: &Small, step: usize| model.loss(step);
    let (_, expected) = by_hand(small(), &mut adamw(), 0.2, loss);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut model = small();
                let mut optim = adamw()
                    .with_gradient_release()
                    .with_norm_clipping(clipping(0.2));
                for (step, expected) in expected.iter().enumerate() {
                    (model, _) = optim.two_passes(LR, model, |model| loss(model, step));
                    assert_bits(&bits(&model), expected, &format!("step {step}"));
                }
            });
        }
    });
}

/// A pass whose orders go by time may have another norm, in its last bits: the report says so.
#[test]
fn a_norm_of_another_order_is_not_called_plain() {
    let make = || {
        adamw()
            .with_gradient_release()
            .with_norm_clipping(clipping(0.2))
    };
    let mut optim = make();
    let (model, _) = optim.two_passes(LR, small(), |model| model.loss(0));
    let mut optim = make().load_record(optim.to_record());
    let (model, _) = optim.two_passes(LR, model, |model| model.loss(1));
    assert!(!optim.last_step().unwrap().is_plain());
    let _ = optim.two_passes(LR, model, |model| model.loss(2));
    assert!(optim.last_step().unwrap().is_plain());
}

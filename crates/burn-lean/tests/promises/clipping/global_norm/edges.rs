//! Memory, refusals, and gradients at the ends of the range.

use super::*;

/// The first pass keeps no gradient.
#[test]
fn takes_no_more_memory_than_one_pass() {
    const MAX_NORM: f64 = 1e-3;
    // Residual blocks add up: smaller weights keep the squares finite.
    let make = || map_numbers(seeded(&flex(), deep), |weight| weight * 0.05);
    let loss = |model: &Vec<_>, step| forward(model, 2, step);
    alone(|| {
        for optim in [adamw as fn() -> ModuleOptimizer, sgd] {
            let peaks = |is_clipped: bool| {
                let mut model = make();
                let mut optim = match is_clipped {
                    true => clipping(optim(), MAX_NORM),
                    false => optim().with_gradient_release(),
                };
                let mut peaks = Vec::new();
                for step in 0..2 {
                    let (next, peak) = peak_of(|| match is_clipped {
                        true => optim.two_passes(LR, model, |model| loss(model, step)).0,
                        false => release_step(model, &mut optim, |model| loss(model, step)),
                    });
                    model = next;
                    peaks.push(peak);
                    if is_clipped {
                        let coefficient = optim.last_step().unwrap().clip_coefficient();
                        assert!(coefficient.unwrap() < 1.0, "{coefficient:?}");
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
    });
}

/// A forward pass that is another one the second time.
#[test]
fn passes_that_differ_are_refused() {
    let mut optim = clipping(adamw(), 1.0);
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
    let run = |is_refused: bool| {
        let mut optim = clipping(adamw(), 0.1);
        let mut sums = ReleaseAccumulator::new();
        let mut model = sums.arm(small());
        let grads = grads_of(&model, 0);
        sums.accumulate(&model, grads);
        let mut sums = sums.grads();
        if is_refused {
            let refused = optim
                .try_two_passes(LR, model, sums, |model| model.loss(1) * f64::NAN)
                .unwrap_err();
            assert!(matches!(refused.error(), ReleaseError::NonFinite { .. }));
            (model, sums) = refused.into_given();
            assert_eq!(sums.len(), PARAMS);
        }
        let stepped = optim.try_two_passes(LR, model, sums, |model| model.loss(1));
        bits(&stepped.unwrap().0)
    };
    assert_bits(&run(true), &run(false), "tried again");
}

/// Infinite ones, 1e-20, whose square is zero in 32 bits, and zero.
#[test]
fn gradients_at_the_ends_of_the_range() {
    let optim = || clipping(sgd(), 0.5);
    let before = bits(&small());
    let refused = optim()
        .try_two_passes(LR, small(), GradientsParams::new(), |model| {
            model.loss(0) * f64::INFINITY
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
        assert_eq!(report.count(Outcome::Released), PARAMS);
        assert_eq!(bits(&model), before);
    }
}

/// A pass whose orders go by time may have another norm, in its last bits: the report says so.
#[test]
fn a_norm_of_another_order_is_not_called_plain() {
    let mut optim = clipping(adamw(), 0.2);
    let (model, _) = optim.two_passes(LR, small(), |model| model.loss(0));
    let mut optim = clipping(adamw(), 0.2).load_record(optim.to_record());
    let (model, _) = optim.two_passes(LR, model, |model| model.loss(1));
    assert!(!optim.last_step().unwrap().is_plain());
    let _ = optim.two_passes(LR, model, |model| model.loss(2));
    assert!(optim.last_step().unwrap().is_plain());
}

/// What an earlier backward pass has left of a gradient that it took.
#[test]
fn marks_are_no_sums() {
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(LR, small());
    let (id, grads) = (model.first.weight.id, grads_of(&model, 0));
    let mut sums = GradientsParams::new();
    sums.register(id, grads.get::<2>(id).unwrap());
    let model = optim.step(LR, model, grads);
    let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
    let mut clipped = adamw().with_gradient_release().with_norm_clipping(clipping);
    let refused = clipped.try_arm_to_measure(model, sums).unwrap_err();
    assert_error!(refused.error(), Taken);
}

/// The sums of a parameter that was frozen within the window are not with its slot.
#[test]
fn sums_survive_arming_again() {
    let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
    for measures in [true, false] {
        let mut optim = adamw().with_gradient_release();
        if measures {
            optim = optim.with_norm_clipping(clipping);
        }
        let mut model = small();
        let sums = grads_of(&model, 0);
        let group = ParamGroup::from_path("tied");
        model = model.freeze_group(group);
        for sums in [sums, GradientsParams::new()] {
            model = match measures {
                true => optim.try_arm_to_measure(model, sums).unwrap(),
                false => optim.arm_accumulated(LR, model, sums),
            };
        }
        let (_, sums) = optim.try_disarm_accumulated(model).unwrap();
        assert_eq!(sums.len(), PARAMS);
    }
}

/// A step of which one parameter has an ordinary gradient, after backward has stepped the others.
fn in_mid_step() -> (ReleaseOptimizer, Small, GradientsParams) {
    let mut optim = adamw().with_gradient_release();
    let group = || ParamGroup::from_path("tied");
    let model = optim.arm(LR, small().freeze_group(group()));
    // It is not armed, and so stepped after backward.
    let model = model.unfreeze_group(group());
    let grads = grads_of(&model, 0);
    (optim, model, grads)
}

/// Asked for after a part was stepped, a norm of all gradients comes too late.
#[test]
fn norms_cannot_be_asked_for_in_mid_step() {
    let (optim, model, grads) = in_mid_step();
    let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
    let mut optim = optim.with_norm_clipping(clipping);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_error!(refused.error(), NotMeasured);

    let (optim, model, grads) = in_mid_step();
    let mut optim = optim.with_grad_norm();
    let model = optim.step(LR, model, grads);
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Ordinary), 1);
    assert_eq!(report.grad_norm(), None);
    let _ = release_step(model, &mut optim, |model| model.loss(1));
    assert!(optim.last_step().unwrap().grad_norm().is_some());
}

//! Each call at each moment of a step in two passes.

use burn::optim::{GradientsParams, SgdConfig};
use burn_lean::{
    AdaptiveClippingConfig, AutoClipConfig, LossScalerConfig, NormClipping, ReleaseAccumulator,
    ReleaseError, ReleaseOptimizer, WithGradientRelease, ZClipConfig,
};

use super::by_hand::clip_global;
use crate::harness::{LR, adamw, assert_bits, bits};
use crate::small::{Small, bits_of, grads_of, numbered_from, small};

const MAX_NORM: f64 = 0.1;

fn optim() -> ReleaseOptimizer {
    adamw()
        .with_gradient_release()
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM })
}

fn arm_to_measure(optim: &mut ReleaseOptimizer, model: Small) -> Small {
    optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap()
}

fn measure(optim: &mut ReleaseOptimizer, model: Small) -> Small {
    let model = arm_to_measure(optim, model);
    let grads = grads_of(&model, 0);
    optim.try_measured(&model, grads).unwrap();
    model
}

/// A whole step, whatever came before, comes to the weights of plain Burn.
#[track_caller]
fn finishes(mut optim: ReleaseOptimizer, model: Small) {
    let model = measure(&mut optim, model);
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 0);
    let model = optim.step(LR, model, grads);
    let plain = small();
    let mut grads = grads_of(&plain, 0);
    clip_global(&plain, &mut grads, MAX_NORM);
    let plain = adamw().step(LR, plain, grads);
    assert_bits(&bits(&model), &bits(&plain), "a step after all");
}

#[test]
fn arming_without_measuring_is_refused() {
    let mut optim = optim();
    let refused = optim.try_arm(LR, small()).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    finishes(optim, refused.into_model());
}

#[test]
fn a_norm_is_for_one_step() {
    let mut optim = optim();
    let model = measure(&mut optim, small());
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 0);
    let model = optim.step(LR, model, grads);
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
}

#[test]
fn a_norm_is_for_one_model() {
    let mut optim = optim();
    let model = measure(&mut optim, small());
    let other = numbered_from(small(), 5);
    let refused = optim.try_arm(LR, other).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::WrongModel { .. }),
        "{refused:?}"
    );
    let refused = optim.try_arm(LR, model.clone()).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::Copy { .. }),
        "{refused:?}"
    );
    let model = optim.arm(LR, model);
    let model = optim.disarm(model);
    finishes(optim, model);
}

#[test]
fn arming_while_it_measures_is_refused() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = refused.into_model();
    let grads = grads_of(&model, 0);
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = refused.into_model();
    optim.try_measured(&model, grads).unwrap();
    finishes(optim, model);
}

#[test]
fn stepping_what_was_measured_is_refused() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let grads = grads_of(&model, 0);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::OnlyMeasured);
    let (model, grads) = refused.into_given();
    optim.try_measured(&model, grads).unwrap();
    let refused = optim
        .try_step(LR, model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::OnlyMeasured);
    finishes(optim, refused.into_given().0);
}

#[test]
fn ending_what_was_not_begun_is_refused() {
    let none = GradientsParams::new;
    let mut optim = optim();
    let model = small();
    let error = optim.try_measured(&model, none()).unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    let model = measure(&mut optim, model);
    let error = optim.try_measured(&model, none()).unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    let model = optim.arm(LR, model);
    let error = optim.try_measured(&model, none()).unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    finishes(optim, model);
}

#[test]
fn a_measuring_pass_without_a_forward_is_refused() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let error = optim
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(error, ReleaseError::NoForward);
    let model = measure(&mut optim, model);
    let model = optim.arm(LR, model);
    let refused = optim
        .try_step(LR, model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NoForward);
    finishes(optim, refused.into_given().0);
}

#[test]
fn a_second_gradient_is_refused() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let _ = grads_of(&model, 0);
    let grads = grads_of(&model, 0);
    let error = optim.try_measured(&model, grads).unwrap_err();
    assert!(
        matches!(error, ReleaseError::MeasuredTwice { .. }),
        "{error}"
    );
    finishes(optim, model);
}

#[test]
fn a_gradient_that_nobody_asked_for_is_refused() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    drop(model.loss(0).backward());
    let error = optim
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert!(matches!(error, ReleaseError::Unclaimed { .. }), "{error}");
    finishes(optim, model);
}

#[test]
fn disarming_and_beginning_anew_is_allowed() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let model = optim.disarm(model);
    let model = arm_to_measure(&mut optim, model);
    let _ = grads_of(&model, 0);
    let model = optim.disarm(model);
    let model = measure(&mut optim, model);
    let model = optim.disarm(model);
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = measure(&mut optim, refused.into_model());
    let model = measure(&mut optim, model);
    let model = optim.arm(LR, model);
    let model = optim.arm(LR, model);
    let model = optim.disarm(model);
    finishes(optim, model);
}

/// What was measured and stepped is another forward pass each: between them, it may be thrown away.
#[test]
fn a_forward_pass_can_be_thrown_away() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    drop(model.loss(3));
    let grads = grads_of(&model, 0);
    optim.try_measured(&model, grads).unwrap();
    drop(model.loss(3));
    let model = optim.arm(LR, model);
    drop(model.loss(3));
    let model = optim.disarm(model);
    finishes(optim, model);
}

/// While it measures, the model has its weights: copies, and a record of the optimizer.
#[test]
fn nothing_changes_while_it_measures() {
    let mut optim = optim();
    let before = small().values();
    let model = measure(&mut optim, small());
    assert_eq!(model.values(), before);
    assert_eq!(model.clone().values(), before);
    assert_eq!(bits_of(model.tied.val()), before[4]);
    assert!(optim.to_record().is_empty());
    finishes(optim, model);
}

#[test]
fn dropping_and_loading_leave_an_ordinary_model() {
    let mut first = optim();
    let model = arm_to_measure(&mut first, small());
    let _ = grads_of(&model, 0);
    drop(first);
    let mut second = optim();
    let model = arm_to_measure(&mut second, model);
    let record = second.to_record();
    let mut second = second.load_record(record);
    let error = second
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    let model = measure(&mut second, model);
    let record = second.to_record();
    let mut second = second.load_record(record);
    let refused = second.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    finishes(second, refused.into_model());
}

#[test]
fn others_cannot_arm_what_is_measured() {
    let mut optim = optim();
    let model = arm_to_measure(&mut optim, small());
    let mut other = SgdConfig::new().init().with_gradient_release();
    let refused = other.try_arm(LR, model).unwrap_err();
    assert!(matches!(
        refused.error(),
        ReleaseError::ArmedElsewhere { .. }
    ));
    let model = refused.into_model();
    let refused = ReleaseAccumulator::new().try_arm(model).unwrap_err();
    assert!(matches!(
        refused.error(),
        ReleaseError::ArmedElsewhere { .. }
    ));
    finishes(optim, refused.into_model());
}

/// The sums go to the pass that measures, and stay for the one that steps.
#[test]
fn sums_are_given_once() {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(small());
    let grads = grads_of(&model, 7);
    sums.accumulate(&model, grads);
    let mut optim = optim();
    let model = optim.try_arm_to_measure(model, sums.grads()).unwrap();
    let refused = optim.try_disarm(model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::Accumulated);
    let model = refused.into_model();
    let grads = grads_of(&model, 0);
    optim.try_measured(&model, grads).unwrap();
    let more = grads_of(&small(), 7);
    let refused = optim.try_arm_accumulated(LR, model, more).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let (model, _) = refused.into_given();
    let (model, sums) = optim.try_disarm_accumulated(model).unwrap();
    assert_eq!(sums.len(), crate::small::PARAMS);
    finishes(optim, model);
}

/// A backward pass that panics half way leaves the sums with the model.
#[test]
fn sums_survive_an_abandoned_pass() {
    let run = |is_abandoned: bool| {
        let mut sums = ReleaseAccumulator::new();
        let model = sums.arm(small());
        let grads = grads_of(&model, 7);
        sums.accumulate(&model, grads);
        let mut optim = optim();
        let mut model = optim.try_arm_to_measure(model, sums.grads()).unwrap();
        if is_abandoned {
            let _ = grads_of(&model, 3);
            model = arm_to_measure(&mut optim, model);
        }
        let grads = grads_of(&model, 0);
        optim.try_measured(&model, grads).unwrap();
        let model = optim.arm(LR, model);
        let grads = grads_of(&model, 0);
        bits(&optim.step(LR, model, grads))
    };
    assert_bits(&run(true), &run(false), "abandoned");
}

/// Asked for when the model was armed already: nothing is stepped unclipped.
#[test]
fn clipping_that_comes_late_is_refused() {
    let mut plain = adamw().with_gradient_release();
    let model = plain.arm(LR, small());
    let mut optim = plain.with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM });
    let grads = grads_of(&model, 0);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = optim.disarm(refused.into_given().0);
    finishes(optim, model);
}

/// The norm is judged by the rule that the optimizer has when it steps.
#[test]
fn another_rule_has_to_measure_again() {
    let mut other = adamw()
        .with_gradient_release()
        .with_norm_clipping(NormClipping::GlobalNorm { max_norm: 9.0 });
    let model = measure(&mut other, small());
    let rule = NormClipping::GlobalNorm { max_norm: MAX_NORM };
    let mut optim = other.with_norm_clipping(rule);
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    finishes(optim, refused.into_model());
}

/// Settings that would turn gradients around, or into nothing.
#[test]
fn settings_out_of_range_are_refused() {
    let zclip = ZClipConfig::new();
    let global = |max_norm| NormClipping::GlobalNorm { max_norm };
    let adaptive = AdaptiveClippingConfig::new();
    let auto = AutoClipConfig::new();
    let rules = [
        (global(-1.0), "max_norm"),
        (global(0.0), "max_norm"),
        (global(f64::NAN), "max_norm"),
        (NormClipping::ZClip(zclip.with_alpha(1.5)), "alpha"),
        (
            NormClipping::ZClip(zclip.with_z_threshold(0.0)),
            "z_threshold",
        ),
        (NormClipping::ZClip(zclip.with_warm_up(0)), "warm_up"),
        (
            NormClipping::Adaptive(adaptive.with_clip_factor(0.0)),
            "clip_factor",
        ),
        (NormClipping::Adaptive(adaptive.with_eps(f64::NAN)), "eps"),
        (
            NormClipping::AutoClip(auto.with_percentile(101.0)),
            "percentile",
        ),
        (NormClipping::AutoClip(auto.with_history(0)), "history"),
    ];
    let scaler = LossScalerConfig::new();
    let scalers = [
        (scaler.with_backoff_factor(2.0), "backoff_factor"),
        (scaler.with_init_scale(f64::INFINITY), "init_scale"),
        (scaler.with_growth_factor(0.5), "growth_factor"),
        (scaler.with_growth_interval(0), "growth_interval"),
    ];
    let plain = || adamw().with_gradient_release();
    let rules = rules.map(|(rule, setting)| (plain().with_norm_clipping(rule), setting));
    let scalers = scalers.map(|(scaler, setting)| {
        let optim = plain().with_loss_scaler(scaler.init());
        (optim, setting)
    });
    for (mut optim, expected) in rules.into_iter().chain(scalers) {
        let refused = optim
            .try_arm_to_measure(small(), GradientsParams::new())
            .unwrap_err();
        let ReleaseError::OutOfRange { setting, .. } = refused.error() else {
            panic!("{:?}", refused.error());
        };
        assert_eq!(setting, expected);
        let refused = optim.try_arm(LR, refused.into_given().0).unwrap_err();
        assert!(matches!(refused.error(), ReleaseError::OutOfRange { .. }));
        let model = refused.into_model();
        let grads = grads_of(&model, 0);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert!(matches!(refused.error(), ReleaseError::OutOfRange { .. }));
    }
}

/// What Burn's optimizer has no room for would be lost without a word.
#[test]
fn handing_over_what_burn_has_not_is_refused() {
    let refused = optim().try_into_optimizer().err().unwrap();
    assert!(matches!(refused.error(), ReleaseError::NotBurns { .. }));
    finishes(refused.into_model(), small());
    let watched = adamw().with_gradient_release().with_grad_norm();
    assert!(watched.try_into_optimizer().is_ok());
}

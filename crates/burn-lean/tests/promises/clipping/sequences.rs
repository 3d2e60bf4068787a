//! Each call at each moment of a step in two passes.

use super::by_hand::clip_global;
use crate::harness::prelude::*;
use crate::small::kind;

const MAX_NORM: f64 = 0.1;

fn clipping(max_norm: f64) -> NormClipping {
    NormClipping::GlobalNorm { max_norm }
}

fn optim() -> ReleaseOptimizer {
    adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(MAX_NORM))
}

fn arm_to_measure(optim: &mut ReleaseOptimizer, model: Small) -> Small {
    let none = GradientsParams::new();
    optim.try_arm_to_measure(model, none).unwrap()
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

/// How far a step has come, in this order.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Moment {
    Ordinary,
    /// Armed to measure.
    Measuring,
    /// The first backward has run.
    Backward,
    Measured,
    /// Armed to step.
    Armed,
    Stepped,
}

/// The optimizer, the model and the gradients at a moment.
fn at(moment: Moment) -> (ReleaseOptimizer, Small, GradientsParams) {
    let (mut optim, mut model, mut grads) = (optim(), small(), GradientsParams::new());
    if moment >= Moment::Measuring {
        model = arm_to_measure(&mut optim, model);
    }
    if moment >= Moment::Backward {
        grads = grads_of(&model, 0);
    }
    if moment >= Moment::Measured {
        let grads = std::mem::take(&mut grads);
        optim.try_measured(&model, grads).unwrap();
    }
    if moment >= Moment::Armed {
        model = optim.arm(LR, model);
    }
    if moment >= Moment::Stepped {
        let grads = grads_of(&model, 0);
        model = optim.step(LR, model, grads);
    }
    (optim, model, grads)
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Arm,
    Step,
    /// Ends the pass that measures.
    Measured,
}

/// A refused call changes nothing: the step can be taken after all.
#[test]
fn calls_at_the_wrong_moment_are_refused() {
    let refused = [
        (Call::Arm, Moment::Ordinary, "NotMeasured"),
        (Call::Arm, Moment::Measuring, "NotMeasured"),
        (Call::Arm, Moment::Backward, "NotMeasured"),
        (Call::Arm, Moment::Stepped, "NotMeasured"),
        (Call::Step, Moment::Measuring, "OnlyMeasured"),
        (Call::Step, Moment::Backward, "OnlyMeasured"),
        (Call::Step, Moment::Measured, "OnlyMeasured"),
        (Call::Step, Moment::Armed, "NoForward"),
        (Call::Measured, Moment::Ordinary, "NotMeasuring"),
        (Call::Measured, Moment::Measuring, "NoForward"),
        (Call::Measured, Moment::Measured, "NotMeasuring"),
        (Call::Measured, Moment::Armed, "NotMeasuring"),
        (Call::Measured, Moment::Stepped, "NotMeasuring"),
    ];
    for (call, moment, expected) in refused {
        let (mut optim, model, grads) = at(moment);
        let (error, model, grads) = match call {
            Call::Arm => {
                let refused = optim.try_arm(LR, model).unwrap_err();
                (refused.error().clone(), refused.into_model(), grads)
            }
            Call::Step => {
                let refused = optim.try_step(LR, model, grads).unwrap_err();
                let error = refused.error().clone();
                let (model, grads) = refused.into_given();
                (error, model, grads)
            }
            Call::Measured => {
                let refused = optim.try_measured(&model, grads).unwrap_err();
                (refused.error().clone(), model, refused.into_given().1)
            }
        };
        assert_eq!(kind(&error), expected, "{call:?}, {moment:?}");
        match moment {
            // Two steps are not one of plain Burn.
            Moment::Stepped => continue,
            Moment::Backward => {
                optim.try_measured(&model, grads).unwrap();
            }
            _ => {}
        }
        finishes(optim, model);
    }
}

#[test]
fn gradients_of_other_than_one_backward_are_refused() {
    let (mut optim, model, _) = at(Moment::Backward);
    let none = GradientsParams::new();
    let unclaimed = optim.try_measured(&model, none).unwrap_err();
    assert_eq!(kind(unclaimed.error()), "Unclaimed");
    let second = grads_of(&model, 0);
    let twice = optim.try_measured(&model, second).unwrap_err();
    assert_eq!(kind(twice.error()), "MeasuredTwice");
    assert_eq!(twice.into_given().1.len(), PARAMS);
    finishes(optim, model);
}

/// Nothing is stepped with a norm that is not of all gradients.
#[test]
fn a_gradient_that_was_not_measured_is_refused() {
    // The backward pass that measures was forgotten.
    let (mut optim, model, _) = at(Moment::Measuring);
    drop(model.loss(0));
    let none = GradientsParams::new();
    assert_eq!(optim.try_measured(&model, none).unwrap().norm(), 0.0);
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 0);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_error!(refused.error(), NotMeasured, "or not of all of them");
    let model = optim.disarm(refused.into_model());
    finishes(optim, model);

    // It came to some parameters only, and another pass that is not of the step to all.
    let of_first = |model: &Small| {
        let loss = model.first.forward(numbers([3, 4], 0, &flex())).mean();
        GradientsParams::from_grads(loss.backward(), model)
    };
    for (is_armed, is_followed) in [(true, false), (false, false), (true, true)] {
        let (mut optim, model, _) = at(Moment::Measuring);
        let grads = of_first(&model);
        optim.try_measured(&model, grads).unwrap();
        if is_followed {
            drop(grads_of(&model, 5));
        }
        let model = optim.arm(LR, model);
        let fork = model.clone().fork(&flex());
        let grads = match is_armed {
            true => grads_of(&model, 0),
            false => grads_of(&fork, 0),
        };
        let stepped = optim.try_step(LR, model, grads);
        let refused = stepped.unwrap_err();
        assert_error!(refused.error(), NotMeasured, "or not of all of them");
        let model = refused.into_model();
        assert_eq!(
            model.second.weight.val().into_data(),
            small().second.weight.val().into_data()
        );
        let model = optim.disarm(model);
        finishes(optim, model);
    }
}

/// The norm is for the rule, the states and the model that it was measured with.
#[test]
fn a_norm_is_for_one_step() {
    for moment in [Moment::Measuring, Moment::Measured] {
        let (optim, model, _) = at(moment);
        let record = optim.to_record();
        let mut optim = optim.load_record(record);
        let none = GradientsParams::new();
        let refused = optim.try_measured(&model, none).unwrap_err();
        assert_eq!(*refused.error(), ReleaseError::NotMeasuring);
        let refused = optim.try_arm(LR, model).unwrap_err();
        assert_eq!(*refused.error(), ReleaseError::NotMeasured);
        finishes(optim, refused.into_model());
    }

    let (optim, model, _) = at(Moment::Measured);
    let mut optim = optim.with_norm_clipping(clipping(9.0));
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let optim = optim.with_norm_clipping(clipping(MAX_NORM));
    finishes(optim, refused.into_model());

    let (mut optim, model, _) = at(Moment::Measured);
    let refused = optim.try_arm(LR, numbered_from(small(), 5)).unwrap_err();
    assert_eq!(kind(refused.error()), "WrongModel");
    let refused = optim.try_arm(LR, model.clone()).unwrap_err();
    assert_eq!(kind(refused.error()), "Copy");
    let model = optim.arm(LR, model);
    let model = optim.disarm(model);
    finishes(optim, model);
}

#[test]
fn dropping_the_optimizer_leaves_an_ordinary_model() {
    let (dropped, model, _) = at(Moment::Backward);
    drop(dropped);
    finishes(optim(), model);
}

#[test]
fn disarming_and_beginning_anew_is_allowed() {
    for moment in [Moment::Measuring, Moment::Backward, Moment::Measured] {
        let (mut optim, model, _) = at(moment);
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
    let before = small().values();
    let (optim, model, _) = at(Moment::Measured);
    assert_eq!(model.values(), before);
    assert_eq!(model.clone().values(), before);
    assert_eq!(bits_of(model.tied.val()), before[4]);
    assert!(optim.to_record().is_empty());
    finishes(optim, model);
}

#[test]
fn others_cannot_arm_what_is_measured() {
    let (optim, model, _) = at(Moment::Measuring);
    let mut other = SgdConfig::new().init().with_gradient_release();
    let refused = other.try_arm(LR, model).unwrap_err();
    assert_eq!(kind(refused.error()), "ArmedElsewhere");
    let mut other = ReleaseAccumulator::new();
    let refused = other.try_arm(refused.into_model()).unwrap_err();
    assert_eq!(kind(refused.error()), "ArmedElsewhere");
    finishes(optim, refused.into_model());
}

/// Armed to measure, with the sum of a micro-batch.
fn with_a_sum(optim: &mut ReleaseOptimizer) -> Small {
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(small());
    let grads = grads_of(&model, 7);
    sums.accumulate(&model, grads);
    optim.try_arm_to_measure(model, sums.grads()).unwrap()
}

/// The sums go to the pass that measures, and stay for the one that steps.
#[test]
fn sums_are_given_once() {
    let mut optim = optim();
    let model = with_a_sum(&mut optim);
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
    assert_eq!(sums.len(), PARAMS);
    finishes(optim, model);
}

/// A backward pass that panics half way leaves the sums with the model.
#[test]
fn sums_survive_an_abandoned_pass() {
    let run = |is_abandoned: bool| {
        let mut optim = optim();
        let mut model = with_a_sum(&mut optim);
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

/// Settings that would turn gradients around, or into nothing.
#[test]
fn settings_out_of_range_are_refused() {
    let (zclip, scaler) = (ZClipConfig::new(), LossScalerConfig::new());
    let (adaptive, auto) = (AdaptiveClippingConfig::new(), AutoClipConfig::new());
    let plain = || adamw().with_gradient_release();
    let with_rule = |rule| plain().with_norm_clipping(rule);
    let with_zclip = |config| with_rule(NormClipping::ZClip(config));
    let with_adaptive = |config| with_rule(NormClipping::Adaptive(config));
    let with_auto = |config| with_rule(NormClipping::AutoClip(config));
    let with_scaler = |config: LossScalerConfig| plain().with_loss_scaler(config.init());
    let optims = [
        (with_rule(clipping(-1.0)), "max_norm"),
        (with_rule(clipping(0.0)), "max_norm"),
        (with_rule(clipping(f64::NAN)), "max_norm"),
        (with_zclip(zclip.with_alpha(1.5)), "alpha"),
        (with_zclip(zclip.with_z_threshold(0.0)), "z_threshold"),
        (with_zclip(zclip.with_warm_up(0)), "warm_up"),
        (with_adaptive(adaptive.with_clip_factor(0.0)), "clip_factor"),
        (with_adaptive(adaptive.with_eps(f64::NAN)), "eps"),
        (with_auto(auto.with_percentile(101.0)), "percentile"),
        (with_auto(auto.with_history(0)), "history"),
        (
            with_scaler(scaler.with_backoff_factor(2.0)),
            "backoff_factor",
        ),
        (
            with_scaler(scaler.with_init_scale(f64::INFINITY)),
            "init_scale",
        ),
        (with_scaler(scaler.with_growth_factor(0.5)), "growth_factor"),
        (
            with_scaler(scaler.with_growth_interval(0)),
            "growth_interval",
        ),
    ];
    for (mut optim, expected) in optims {
        let none = GradientsParams::new();
        let refused = optim.try_arm_to_measure(small(), none).unwrap_err();
        let ReleaseError::OutOfRange { setting, .. } = refused.error() else {
            panic!("{:?}", refused.error());
        };
        assert_eq!(setting, expected);
        let refused = optim.try_arm(LR, refused.into_given().0).unwrap_err();
        assert_eq!(kind(refused.error()), "OutOfRange", "{expected}");
        let model = refused.into_model();
        let grads = grads_of(&model, 0);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_eq!(kind(refused.error()), "OutOfRange", "{expected}");
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

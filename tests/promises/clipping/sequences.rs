//! Each call at each moment of a step in two passes.

use burn::backend::Flex;
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn_gradient_release::{
    AdaptiveClippingConfig, AutoClipConfig, GroupOptions, LossScalerConfig, NormClipping,
    ParamGroup, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, WithGradientRelease,
    ZClipConfig,
};

use super::by_hand::clip_global;
use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{RATE, Start};
use crate::harness::{Plain, Release, Weights};

type P = Plain<Flex>;
type R = Release<Flex>;
type Model = MlpModel<R>;
type Adam = ReleaseOptimizer<burn::optim::Adam, Model, R>;

const MAX_NORM: f64 = 0.1;

fn optim() -> Adam {
    let optim = AdamConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM })
}

fn run(model: &Model) -> GradientsParams {
    let loss = Mlp::loss::<R>(model, Size::Small, 0);
    GradientsParams::from_grads(loss.backward(), model)
}

fn measure(optim: &mut Adam, model: Model) -> Model {
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let grads = run(&model);
    assert!(grads.is_empty(), "a measured gradient is gone");
    optim.try_measured(&model, grads).unwrap();
    model
}

/// The weights after one step of plain Burn.
fn expected(start: &Start) -> Weights {
    let mut model = start.model::<Mlp, P>();
    let loss = Mlp::loss::<P>(&model, Size::Small, 0);
    let mut grads = GradientsParams::from_grads(loss.backward(), &model);
    clip_global::<P, _>(&model, &mut grads, MAX_NORM);
    model = AdamConfig::new().init().step(RATE, model, grads);
    Weights::of::<P, _>(&model)
}

/// A whole step, whatever came before.
#[track_caller]
fn finishes(mut optim: Adam, model: Model, start: &Start) {
    let model = measure(&mut optim, model);
    let model = optim.arm(RATE, model);
    let grads = run(&model);
    let model = optim.step(RATE, model, grads);
    Weights::of::<R, _>(&model).assert_same(&expected(start), "a step after all");
}

fn start() -> (Start, Model) {
    let start = Start::new::<Mlp>(Size::Small);
    let model = start.model::<Mlp, R>();
    (start, model)
}

#[test]
fn arming_without_measuring_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    finishes(optim, refused.into_model(), &start);
}

#[test]
fn a_norm_is_for_one_step() {
    let (_, model) = start();
    let mut optim = optim();
    let model = measure(&mut optim, model);
    let model = optim.arm(RATE, model);
    let grads = run(&model);
    let model = optim.step(RATE, model, grads);
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
}

#[test]
fn arming_while_it_measures_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = refused.into_model();
    let grads = run(&model);
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = refused.into_model();
    optim.try_measured(&model, grads).unwrap();
    finishes(optim, model, &start);
}

#[test]
fn stepping_what_was_measured_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let grads = run(&model);
    let refused = optim.try_step(RATE, model, grads).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::OnlyMeasured);
    let (model, grads) = refused.into_given();
    optim.try_measured(&model, grads).unwrap();
    let refused = optim
        .try_step(RATE, model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::OnlyMeasured);
    finishes(optim, refused.into_given().0, &start);
}

#[test]
fn ending_what_was_not_begun_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let error = optim
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    let model = measure(&mut optim, model);
    let model = optim.arm(RATE, model);
    let error = optim
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    finishes(optim, model, &start);
}

#[test]
fn a_second_gradient_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let _ = run(&model);
    let grads = run(&model);
    assert!(!grads.is_empty());
    let error = optim.try_measured(&model, grads).unwrap_err();
    assert!(
        matches!(error, ReleaseError::MeasuredTwice { .. }),
        "{error}"
    );
    finishes(optim, model, &start);
}

#[test]
fn a_gradient_that_nobody_asked_for_is_refused() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    drop(Mlp::loss::<R>(&model, Size::Small, 0).backward());
    let error = optim
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert!(matches!(error, ReleaseError::Unclaimed { .. }), "{error}");
    finishes(optim, model, &start);
}

#[test]
fn disarming_and_beginning_anew_is_allowed() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let model = optim.disarm(model);
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let _ = run(&model);
    let model = optim.disarm(model);
    let model = measure(&mut optim, model);
    let model = optim.disarm(model);
    let refused = optim.try_arm(RATE, model).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    let model = measure(&mut optim, refused.into_model());
    let model = optim.arm(RATE, model);
    let model = optim.arm(RATE, model);
    let model = optim.disarm(model);
    finishes(optim, model, &start);
}

/// What was measured and stepped is another forward pass each: between the two, it may be thrown
/// away.
#[test]
fn a_forward_pass_can_be_thrown_away() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    drop(Mlp::loss::<R>(&model, Size::Small, 3));
    let grads = run(&model);
    optim.try_measured(&model, grads).unwrap();
    let model = optim.arm(RATE, model);
    drop(Mlp::loss::<R>(&model, Size::Small, 3));
    let grads = run(&model);
    let model = optim.step(RATE, model, grads);
    Weights::of::<R, _>(&model).assert_same(&expected(&start), "thrown away");
}

#[test]
fn dropping_loading_and_copying_leave_an_ordinary_model() {
    let (start, model) = start();
    let mut first = optim();
    let model = first
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let _ = run(&model);
    drop(first);
    let mut second = optim();
    let model = second
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let record = second.to_record();
    let mut second = second.load_record(record);
    let error = second
        .try_measured(&model, GradientsParams::new())
        .unwrap_err();
    assert_eq!(error, ReleaseError::NotMeasuring);
    let model = measure(&mut second, model);
    let mut copy = second.clone();
    let refused = copy.try_arm(RATE, model.clone()).unwrap_err();
    assert_eq!(*refused.error(), ReleaseError::NotMeasured);
    finishes(second, model, &start);
}

#[test]
fn others_cannot_arm_what_is_measured() {
    let (start, model) = start();
    let mut optim = optim();
    let model = optim
        .try_arm_to_measure(model, GradientsParams::new())
        .unwrap();
    let mut other = SgdConfig::new().init::<R, Model>().with_gradient_release();
    let refused = other.try_arm(RATE, model).unwrap_err();
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
    finishes(optim, refused.into_model(), &start);
}

/// With a rate of its own, the optimizer arms the model anew after each step, but not without a
/// norm.
#[test]
fn an_owned_rate_steps_in_two_passes() {
    let (start, model) = start();
    let mut optim = optim().with_learning_rate(RATE);
    let rate = optim.next_learning_rate().unwrap();
    let (model, _) = optim.two_passes(rate, model, |model| Mlp::loss::<R>(model, Size::Small, 0));
    assert!(!optim.is_armed());
    Weights::of::<R, _>(&model).assert_same(&expected(&start), "owned");
    let before = Weights::of::<R, _>(&model);
    let (model, _) = optim.two_passes(rate, model, |model| Mlp::loss::<R>(model, Size::Small, 1));
    Weights::of::<R, _>(&model).assert_moved(&before, "a second step");
}

/// Settings that would turn gradients around, or into nothing.
#[test]
fn settings_out_of_range_are_refused() {
    let zclip = ZClipConfig::new();
    let rules = [
        (NormClipping::GlobalNorm { max_norm: -1.0 }, "max_norm"),
        (NormClipping::GlobalNorm { max_norm: f64::NAN }, "max_norm"),
        (NormClipping::ZClip(zclip.with_alpha(1.5)), "alpha"),
        (
            NormClipping::ZClip(zclip.with_z_threshold(0.0)),
            "z_threshold",
        ),
        (
            NormClipping::Adaptive(AdaptiveClippingConfig::new().with_clip_factor(0.0)),
            "clip_factor",
        ),
        (
            NormClipping::AutoClip(AutoClipConfig::new().with_percentile(101.0)),
            "percentile",
        ),
    ];
    let scaler = LossScalerConfig::new().with_backoff_factor(2.0).init();
    let never = LossScalerConfig::new().with_growth_interval(0).init();
    let plain = || AdamConfig::new().init::<R, Model>().with_gradient_release();
    let halved = GroupOptions::new().with_lr_factor(f64::NAN);
    let mut optims: Vec<_> = rules
        .into_iter()
        .map(|(rule, setting)| (plain().with_norm_clipping(rule), setting))
        .collect();
    optims.push((plain().with_loss_scaler(scaler), "backoff_factor"));
    optims.push((plain().with_loss_scaler(never), "growth_interval"));
    optims.push((plain().with_group(ParamGroup::all(), halved), "lr_factor"));
    for (mut optim, expected) in optims {
        let (_, model) = start();
        let refused = optim
            .try_arm_to_measure(model, GradientsParams::new())
            .unwrap_err();
        let ReleaseError::OutOfRange { setting, .. } = refused.error() else {
            panic!("{:?}", refused.error());
        };
        assert_eq!(setting, expected);
        let (model, _) = refused.into_given();
        let grads = run(&model);
        let refused = optim.try_step(RATE, model, grads).unwrap_err();
        assert!(matches!(refused.error(), ReleaseError::OutOfRange { .. }));
    }
}

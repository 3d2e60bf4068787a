//! Each call at each moment of a step in two passes, and settings that no step can be taken with.

use burn_lean::LossScaler;

use super::by_hand::{global_norm, gradients, scale};
use crate::harness::prelude::*;
use crate::small::kind;

const MAX_NORM: f64 = 0.1;
/// It falls in the walk, far from its least.
const SCALE: f64 = (1_u64 << 60) as f64;

fn clipping(max_norm: f64) -> NormClipping {
    NormClipping::GlobalNorm { max_norm }
}

fn optim() -> ReleaseOptimizer {
    adamw()
        .with_gradient_release()
        .with_norm_clipping(clipping(MAX_NORM))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Accumulate,
    Measure,
    /// A gradient that is not finite.
    MeasureOverflow,
    Backward,
    /// With gradients that exist already.
    Step,
    StepWithSums,
    TwoPasses,
    /// The sums are saved and loaded.
    LoadSums,
    TakeSums,
    LoadRecord,
    SetClipping,
    ThrowForwardAway,
}

const CALLS: [Call; 12] = [
    Call::Accumulate,
    Call::Measure,
    Call::MeasureOverflow,
    Call::Backward,
    Call::Step,
    Call::StepWithSums,
    Call::TwoPasses,
    Call::LoadSums,
    Call::TakeSums,
    Call::LoadRecord,
    Call::SetClipping,
    Call::ThrowForwardAway,
];

/// What plain Burn comes to, with all gradients at hand.
struct ByHand {
    model: Small,
    optim: ModuleOptimizer,
    /// The micro-batches of the window.
    window: Vec<usize>,
    /// The norm that was measured.
    measured: Option<f64>,
    scale: f64,
}

impl ByHand {
    fn sums(&self, batches: &[usize]) -> GradientsParams {
        let mut sums = GradientsAccumulator::new();
        for batch in batches {
            sums.accumulate(&self.model, grads_of(&self.model, *batch));
        }
        sums.grads()
    }

    fn measure(&mut self, batch: usize) {
        let batches = [&self.window[..], &[batch]].concat();
        self.measured = Some(global_norm(&self.model, &self.sums(&batches)));
    }

    fn skip(&mut self) {
        (self.window, self.measured) = (Vec::new(), None);
        self.scale *= 0.5;
    }

    /// Returns the norm, if there was a gradient.
    fn step(&mut self, batch: Option<usize>) -> Option<f64> {
        self.window.extend(batch);
        let batches = std::mem::take(&mut self.window);
        let mut grads = self.sums(&batches);
        let own = global_norm(&self.model, &grads);
        let norm = self.measured.take().unwrap_or(own);
        let coefficient = MAX_NORM / (norm + 1e-6);
        if coefficient < 1.0 {
            scale(&self.model, &mut grads, coefficient);
        }
        self.model = self.optim.step(LR, self.model.clone(), grads);
        (!batches.is_empty()).then_some(norm)
    }
}

/// Each call after each other one, in the states that those before have left, and each between a norm that
/// is measured and the step that may need another by then. After each of them the weights, the sums and the norm are those of plain Burn, clipped by hand.
fn walk(scaler: Option<LossScaler>) {
    let has_scaler = scaler.is_some();
    let mut optim = optim();
    if let Some(scaler) = &scaler {
        optim = optim.with_loss_scaler(scaler.clone());
    }
    let loss = |model: &Small, batch| match &scaler {
        Some(scaler) => scaler.scale(model.loss(batch)),
        None => model.loss(batch),
    };
    let mut model = small();
    let mut by_hand = ByHand {
        model: small(),
        optim: adamw(),
        window: Vec::new(),
        measured: None,
        scale: SCALE,
    };
    let after = |first| CALLS.iter().flat_map(move |second| [first, *second]);
    let pairs = CALLS.into_iter().flat_map(after);
    let between = |call| [Call::Measure, call, Call::Backward];
    let calls = pairs.chain(CALLS.into_iter().flat_map(between));
    let mut last = None;
    for (batch, call) in calls.enumerate() {
        let what = format!("{call:?} after {last:?}, call {batch}");
        last = Some(call);
        let mut norm = None;
        match call {
            Call::Accumulate => {
                optim.accumulate(loss(&model, batch), &model);
                by_hand.window.push(batch);
                by_hand.measured = None;
            }
            Call::Measure => {
                let found = optim.measure(loss(&model, batch), &model);
                by_hand.measure(batch);
                assert_eq!(Some(found.norm()), by_hand.measured, "{what}");
            }
            Call::MeasureOverflow => {
                let loss = loss(&model, batch) * f64::INFINITY;
                let measured = optim.try_measure(loss, &model);
                if has_scaler {
                    assert!(!measured.unwrap().is_finite(), "{what}");
                    let skipped = optim.last_step().unwrap().count(Outcome::Skipped);
                    assert_eq!(skipped, PARAMS, "{what}");
                    by_hand.skip();
                } else {
                    let refused = measured.unwrap_err();
                    assert_error!(refused.error(), NonFinite, "leave this batch out");
                    by_hand.measured = None;
                }
            }
            Call::Backward if by_hand.measured.is_none() => {
                let loss = loss(&model, batch);
                let refused = optim.try_backward(LR, loss, model).unwrap_err();
                assert_eq!(*refused.error(), ReleaseError::NotMeasured, "{what}");
                let (again, loss) = refused.into_given();
                assert!(loss.is_some());
                model = again;
            }
            Call::Backward => {
                model = optim.backward(LR, loss(&model, batch), model);
                norm = by_hand.step(Some(batch));
            }
            Call::Step => {
                let grads = gradients(&model, loss(&model, batch));
                model = optim.step(LR, model, grads);
                // It measures its own gradients.
                by_hand.measured = None;
                norm = by_hand.step(Some(batch));
            }
            Call::StepWithSums => {
                model = optim.step(LR, model, GradientsParams::new());
                by_hand.measured = None;
                norm = by_hand.step(None);
            }
            Call::TwoPasses => {
                (model, _) = optim.two_passes(LR, model, |model| loss(model, batch));
                by_hand.measure(batch);
                norm = by_hand.step(Some(batch));
            }
            Call::LoadSums => {
                let record = optim.sums_to_record(&model);
                optim.load_sums(&model, record).unwrap();
                by_hand.measured = None;
            }
            Call::TakeSums => {
                let sums = optim.take_sums(&model);
                let expected = !by_hand.window.is_empty();
                assert_eq!(!sums.is_empty(), expected, "{what}");
                (by_hand.window, by_hand.measured) = (Vec::new(), None);
            }
            Call::LoadRecord => {
                let record = optim.to_record();
                optim = optim.load_record(record);
                by_hand.measured = None;
            }
            Call::SetClipping => {
                optim = optim.with_norm_clipping(clipping(MAX_NORM));
                by_hand.measured = None;
            }
            Call::ThrowForwardAway => drop(model.loss(batch)),
        }
        assert_bits(&bits(&model), &bits(&by_hand.model), &what);
        assert_eq!(optim.has_sums(), !by_hand.window.is_empty(), "{what}");
        if norm.is_some() {
            assert_eq!(optim.last_step().unwrap().grad_norm(), norm, "{what}");
        }
        if let Some(scaler) = &scaler {
            assert_eq!(scaler.current(), by_hand.scale, "{what}");
        }
    }
}

#[test]
fn each_call_after_each_other_is_as_by_hand() {
    walk(None);
    let config = LossScalerConfig::new().with_init_scale(SCALE);
    walk(Some(config.init()));
}

/// Nothing is stepped with a norm that is not of its gradient.
#[test]
fn a_gradient_that_was_not_measured_is_refused() {
    let of_first = |model: &Small| model.first.forward(numbers([3, 4], 0, &flex())).mean();
    // Those of other layers come first, and nothing is stepped.
    let mut optim = optim();
    let model = small();
    optim.measure(of_first(&model), &model);
    let refused = optim.try_backward(LR, model.loss(0), model).unwrap_err();
    assert_error!(refused.error(), NotMeasured, "or not of all of them");
    let model = refused.into_model();
    assert_eq!(model.values(), small().values());

    // One that was measured comes first, and is stepped.
    let of_second = |model: &Small| model.second.forward(numbers([3, 6], 0, &flex())).mean();
    optim.measure(of_second(&model), &model);
    let refused = optim.try_backward(LR, model.loss(0), model).unwrap_err();
    assert_error!(refused.error(), NotMeasured, "load the last checkpoint");
    assert_error!(optim.try_to_record().unwrap_err(), Interrupted);
    let mut optim = optim.load_record(OptimizerRecord::default());
    optim.two_passes(LR, small(), |model| model.loss(0));
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
        let model = small();
        let refused = optim.try_measure(model.loss(0), &model).unwrap_err();
        let ReleaseError::OutOfRange { setting, .. } = refused.error() else {
            panic!("{:?}", refused.error());
        };
        assert_eq!(setting, expected);
        let refused = optim.try_backward(LR, model.loss(0), model).unwrap_err();
        assert_eq!(kind(refused.error()), "OutOfRange", "{expected}");
        let model = refused.into_model();
        let grads = grads_of(&model, 0);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_eq!(kind(refused.error()), "OutOfRange", "{expected}");
    }
}

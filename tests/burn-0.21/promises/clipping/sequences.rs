//! Each call at each moment of a step in two passes.

use burn_gradient_release::{
    AdaptiveClippingConfig, AutoClipConfig, GradientRecord, LossScalerConfig, Refused, ZClipConfig,
};

use super::by_hand::clip_global;
use crate::harness::prelude::*;

type Model = MlpModel<R>;
type Adam = ReleaseOptimizer<burn::optim::Adam, Model, R>;

const MAX_NORM: f64 = 0.1;

fn adam() -> Adam {
    let optim = AdamConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM })
}

fn backward(model: &Model) -> GradientsParams {
    let loss = Mlp::loss::<R>(model, Size::Small, 0);
    gradients(model, loss)
}

/// The weights after so many steps of plain Burn.
fn expected(start: &Start, steps: usize) -> Weights {
    let mut model = start.model::<Mlp, P>();
    let mut optim = AdamConfig::new().init();
    for _ in 0..steps {
        let mut grads = gradients(&model, Mlp::loss::<P>(&model, Size::Small, 0));
        clip_global::<P, _>(&model, &mut grads, MAX_NORM);
        model = optim.step(RATE, model, grads);
    }
    Weights::of(&model)
}

/// A model and its optimizer between two calls.
struct Bench {
    start: Start,
    optim: Adam,
    /// Gone only during a call.
    model: Option<Model>,
    grads: GradientsParams,
    steps: usize,
}

impl Bench {
    fn new() -> Self {
        let start = Start::new::<Mlp>(Size::Small);
        Self {
            optim: adam(),
            model: Some(start.model::<Mlp, R>()),
            start,
            grads: GradientsParams::new(),
            steps: 0,
        }
    }

    fn call(&mut self, call: &str) -> Result<(), ReleaseError> {
        let model = self.model.take().expect("there is one");
        let grads = std::mem::take(&mut self.grads);
        let (model, result) = match call {
            "arm to measure" => {
                let none = GradientsParams::new();
                let (model, _, result) = end(self.optim.try_arm_to_measure(model, none));
                (model, result)
            }
            "arm" => {
                let (model, _, result) = end(self.optim.try_arm(RATE, model));
                (model, result)
            }
            "arm with sums" => {
                let armed = self.optim.try_arm_accumulated(RATE, model, self.sums());
                let (model, sums, result) = end(armed);
                assert!(sums.is_none_or(|sums| !sums.is_empty()), "handed back");
                (model, result)
            }
            "arm by fork with sums" => {
                let sums = self.sums();
                let armed = self.optim.try_arm_by_fork(RATE, model.clone(), sums, || ());
                let ((), sums, result) = end(armed);
                assert!(sums.is_some_and(|sums| !sums.is_empty()), "handed back");
                (model, result)
            }
            "disarm" => (self.optim.disarm(model), Ok(())),
            "forward that is thrown away" => {
                drop(Mlp::loss::<R>(&model, Size::Small, 3));
                (model, Ok(()))
            }
            "backward" | "backward again" => {
                self.grads = backward(&model);
                // Nothing is left of the gradients of an armed model, but those that come too late.
                assert_eq!(self.grads.is_empty(), call == "backward");
                (model, Ok(()))
            }
            "backward of NaN" => {
                let nan = model.layers[0].weight.val().sum() * f64::NAN;
                self.grads = gradients(&model, nan);
                (model, Ok(()))
            }
            "backward that nobody asks" => {
                drop(Mlp::loss::<R>(&model, Size::Small, 0).backward());
                (model, Ok(()))
            }
            "measured" => {
                let result = self.optim.try_measured(&model, grads);
                (model, result.map(|_| ()).map_err(ReleaseError::from))
            }
            "measured with gradients" => {
                let sums = self.sums();
                let result = self.optim.try_measured(&model, sums);
                (model, result.map(|_| ()).map_err(ReleaseError::from))
            }
            "measured with another model" => {
                let another = Mlp::init::<R>(Size::Small, &Default::default());
                let measured = self.optim.try_measured(&another, self.sums());
                let ((), sums, result) = end(measured.map(|_| ()));
                assert!(sums.is_some_and(|sums| !sums.is_empty()), "handed back");
                self.grads = grads;
                (model, result)
            }
            "step" => {
                let (model, grads, result) = end(self.optim.try_step(RATE, model, grads));
                self.steps += usize::from(result.is_ok());
                self.grads = grads.unwrap_or_default();
                (model, result)
            }
            _ => panic!("no call: {call}"),
        };
        self.model = Some(model);
        result
    }

    /// The gradients of an earlier micro-batch.
    fn sums(&self) -> GradientsParams {
        backward(&self.start.model::<Mlp, R>())
    }

    /// Each call, and the name of the error that refuses it.
    #[track_caller]
    fn calls(&mut self, calls: &str) {
        for call in calls.split(", ") {
            let (call, expected) = call.split_once(": ").unwrap_or((call, ""));
            let error = self.call(call).err().map(|error| format!("{error:?}"));
            let error = error.unwrap_or_default();
            let name = error.split(|c: char| !c.is_alphanumeric()).next();
            assert_eq!(name, Some(expected), "{call} in `{calls}`: {error}");
        }
    }

    /// A whole step, whatever came before.
    #[track_caller]
    fn finishes(mut self) {
        self.calls(WHOLE_STEP);
        let expected = expected(&self.start, self.steps);
        Weights::of(&self.model.unwrap()).assert_same(&expected, "a step after all");
    }
}

/// What a call leaves, what it hands back beside it, and why it was refused.
fn end<M, G>(result: Result<M, Refused<M, G>>) -> (M, Option<G>, Result<(), ReleaseError>) {
    match result {
        Ok(model) => (model, None, Ok(())),
        Err(refused) => {
            let error = refused.error().clone();
            let (model, given) = refused.into_given();
            (model, Some(given), Err(error))
        }
    }
}

const WHOLE_STEP: &str = "arm to measure, backward, measured, arm, backward, step";

#[test]
fn each_call_at_each_moment() {
    for calls in [
        // Arming without a norm, or while it is measured.
        "arm: NotMeasured",
        "arm to measure, arm: NotMeasured, backward, arm: NotMeasured, measured",
        // A norm is for one step.
        &format!("{WHOLE_STEP}, arm: NotMeasured"),
        // Stepping what was measured.
        "arm to measure, backward, step: OnlyMeasured, measured, step: OnlyMeasured",
        // Ending what was not begun.
        "measured: NotMeasuring, arm to measure, backward, measured, arm, measured: NotMeasuring",
        // A second gradient, and one that nobody asked for.
        "arm to measure, backward, backward again, measured: MeasuredTwice",
        "arm to measure, backward that nobody asks, measured: Unclaimed",
        "arm to measure, measured with gradients, measured with gradients: MeasuredTwice",
        // A second look finds the same norm, or the same error.
        "arm to measure, backward, measured, measured, arm, backward, step",
        "arm to measure, backward of NaN, measured: NonFinite, measured: NonFinite, arm: NotMeasured",
        // The norm of nothing.
        "arm to measure, backward, measured with another model: WrongModel, measured, arm, backward, \
         step",
        // Sums that are not in the norm.
        "arm to measure, backward, measured, arm with sums: NotMeasured, \
         arm by fork with sums: NotMeasured, arm, backward, step",
        // Disarming and beginning anew is allowed.
        "arm to measure, disarm, arm to measure, backward, disarm, arm to measure, backward, \
         measured, disarm, arm: NotMeasured, arm to measure, backward, measured, arm, arm, disarm",
        // What was measured and stepped is another forward pass each: between the two, it may be
        // thrown away.
        "arm to measure, forward that is thrown away, backward, measured, arm, \
         forward that is thrown away, backward, step",
    ] {
        let mut bench = Bench::new();
        bench.calls(calls);
        bench.finishes();
    }
}

#[test]
fn dropping_loading_and_copying_leave_an_ordinary_model() {
    let mut bench = Bench::new();
    bench.calls("arm to measure, backward");
    bench.optim = adam();
    bench.calls("arm to measure");
    let record = bench.optim.to_record();
    bench.optim = bench.optim.load_record(record);
    bench.calls("measured: NotMeasuring, arm to measure, backward, measured");
    let mut copy = bench.optim.clone();
    let armed = copy.try_arm(RATE, bench.model.clone().unwrap());
    refused!(armed, ReleaseError::NotMeasured);
    bench.finishes();
}

/// The norm does not depend on how often it is asked for, and one that is not finite is no reason to
/// step.
#[test]
fn a_scaled_loss_is_measured_once() {
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    let scaler = LossScalerConfig::new().init();
    let optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let mut optim = optim.with_loss_scaler(scaler.clone());
    let mut measured = |model, factor: f64| {
        let armed = optim.try_arm_to_measure(model, GradientsParams::new());
        let model = armed.unwrap_or_else(|refused| panic!("{refused}"));
        let grads = gradients(
            &model,
            scaler.scale(Mlp::loss::<R>(&model, Size::Small, 0) * factor),
        );
        let first = optim.try_measured(&model, grads).unwrap();
        let second = optim.try_measured(&model, GradientsParams::new());
        (model, first, second.unwrap())
    };
    let (model, first, second) = measured(model, 1.0);
    assert!(first.norm() > 0.0);
    assert_eq!(second, first);
    let (model, first, second) = measured(model, f64::INFINITY);
    assert!(!first.is_finite() && !second.is_finite());
    let (model, ()) = refused!(optim.try_arm(RATE, model), ReleaseError::Overflown);
    // The way out that it names.
    let scale = scaler.current();
    optim.step(RATE, model, GradientsParams::new());
    assert!(scaler.current() < scale);
}

/// With a rate of its own, the optimizer arms the model anew after each step, but not without a
/// norm.
#[test]
fn an_owned_rate_steps_in_two_passes() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut model = start.model::<Mlp, R>();
    let mut optim = adam().with_learning_rate(RATE);
    let rate = optim.next_learning_rate().unwrap();
    for steps in [1, 2] {
        (model, _) = optim.two_passes(rate, model, |model| Mlp::loss::<R>(model, Size::Small, 0));
        assert!(!optim.is_armed());
        Weights::of(&model).assert_same(&expected(&start, steps), "owned");
    }
}

/// What a rule has seen goes on from its record. (That each tensor has a history of its own:
/// [`reference`](super::reference).)
#[test]
fn a_rule_goes_on_from_its_record() {
    let start = Start::new::<Mlp>(Size::Small);
    for rule in [
        NormClipping::AutoClip(AutoClipConfig::new().with_percentile(25.0)),
        NormClipping::ZClip(ZClipConfig::new().with_warm_up(2)),
    ] {
        let new = || {
            let optim = AdamConfig::new().init().with_gradient_release();
            optim.with_norm_clipping(rule)
        };
        let run = |carry: Option<fn(GradientRecord) -> GradientRecord>| {
            let (mut model, mut optim): (_, Adam) = (start.model::<Mlp, R>(), new());
            for step in 0..8 {
                if let Some(carry) = carry.filter(|_| step == 4) {
                    let record = carry(optim.gradient_record());
                    let states = optim.to_record();
                    optim = new().load_gradient_record(record).load_record(states);
                }
                let spike = if step % 3 == 2 { 40.0 } else { 1.0 };
                let loss = |model: &_| Mlp::loss::<R>(model, Size::Small, step) * spike;
                model = match rule.needs_two_passes() {
                    true => optim.two_passes(RATE, model, loss).0,
                    false => armed_step(RATE, model, &mut optim, loss),
                };
            }
            Weights::of(&model)
        };
        let whole = run(None);
        let carried = run(Some(|record| {
            let saved = serde_json::to_string(&record).unwrap();
            serde_json::from_str(&saved).unwrap()
        }));
        carried.assert_same(&whole, format!("{rule:?}"));
        let lost = run(Some(|_| adam().gradient_record()));
        lost.assert_moved(&whole, format!("{rule:?}: a record of nothing"));
    }
}

/// Settings that would turn gradients around, or into nothing.
#[test]
fn settings_out_of_range_are_refused() {
    let plain = || AdamConfig::new().init::<R, Model>().with_gradient_release();
    let clipping = |rule| plain().with_norm_clipping(rule);
    let global = NormClipping::GlobalNorm { max_norm: -1.0 };
    let zclip = ZClipConfig::new().with_alpha(1.5);
    let adaptive = AdaptiveClippingConfig::new().with_clip_factor(0.0);
    let auto = AutoClipConfig::new().with_percentile(101.0);
    let scaler = LossScalerConfig::new().with_backoff_factor(2.0).init();
    let factor = GroupOptions::new().with_lr_factor(f64::NAN);
    for (mut optim, expected) in [
        (clipping(global), "max_norm"),
        (clipping(NormClipping::ZClip(zclip)), "alpha"),
        (clipping(NormClipping::Adaptive(adaptive)), "clip_factor"),
        (clipping(NormClipping::AutoClip(auto)), "percentile"),
        (plain().with_loss_scaler(scaler), "backoff_factor"),
        (plain().with_group(ParamGroup::all(), factor), "lr_factor"),
    ] {
        let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
        let armed = optim.try_arm_to_measure(model, GradientsParams::new());
        let (model, _) = refused!(armed,
            ReleaseError::OutOfRange { setting, .. } if setting == expected);
        let grads = backward(&model);
        let stepped = optim.try_step(RATE, model, grads);
        refused!(stepped, ReleaseError::OutOfRange { .. });
    }
    // Each is a number, and their product is none.
    let factor = GroupOptions::new().with_lr_factor(1e200);
    let mut optim = plain().with_group(ParamGroup::all(), factor);
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, R>();
    refused!(optim.try_arm(1e200, model), ReleaseError::OutOfRange { .. });
}

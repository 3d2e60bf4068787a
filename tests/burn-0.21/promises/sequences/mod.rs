//! Each call at each moment of a step: it does what its words say, or refuses and changes nothing.

mod armings;
mod uses_that_led_nowhere;

use crate::harness::prelude::*;

/// The rate that a second call asks for.
const OTHER: f64 = RATE / 7.0;
/// The step in which the call is made.
const CASE: usize = 1;
const STEPS: usize = 3;

type Optim<S> = ReleaseOptimizer<Adam, <S as Scenario>::Model<R>, R>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    BeforeForward,
    BeforeBackward,
    BeforeStep,
    AfterStep,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Arm,
    ArmACopy,
    ArmByFork,
    Disarm,
    DropTheOptimizer,
    LoadARecord,
    ArmByAnother,
    ArmAnAccumulator,
}

/// Expected end of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// Released inside backward, at this rate.
    Released(f64),
    /// An ordinary step.
    Ordinary,
    /// The call is refused, and the step is as if it had not been made.
    Refused,
    /// The call is carried out, and every later call on the half-made step is refused.
    Abandoned,
}

fn expected(call: Call, moment: Moment) -> Expected {
    use Call::*;
    match (call, moment) {
        (_, Moment::AfterStep) => Expected::Released(RATE),
        (ArmByAnother | ArmAnAccumulator, _) => Expected::Refused,
        (Arm | ArmACopy | ArmByFork | Disarm, Moment::BeforeStep) => Expected::Refused,
        (DropTheOptimizer | LoadARecord, Moment::BeforeStep) => Expected::Abandoned,
        (Arm | ArmACopy | ArmByFork, _) => Expected::Released(OTHER),
        (Disarm | DropTheOptimizer | LoadARecord, _) => Expected::Ordinary,
    }
}

/// Plain Burn's weights after each step, with this rate in the step of the case.
fn plain<S: Scenario>(start: &Start, rate: f64) -> Vec<Weights> {
    let mut model = start.model::<S, P>();
    let mut optim = AdamConfig::new().init();
    let steps = (0..STEPS).map(|step| {
        let rate = if step == CASE { rate } else { RATE };
        let loss = S::loss::<P>(&model, Size::Small, step as u64);
        model = ordinary_step(rate, model.clone(), &mut optim, loss);
        Weights::of(&model)
    });
    steps.collect()
}

/// A training run under way.
struct Run<S: Scenario> {
    model: S::Model<R>,
    optim: Optim<S>,
}

impl<S: Scenario> Run<S> {
    fn new(start: &Start) -> Self {
        Self {
            model: start.model::<S, R>(),
            optim: AdamConfig::new().init().with_gradient_release(),
        }
    }

    fn loss(&self, step: usize) -> Tensor<R, 1> {
        S::loss::<R>(&self.model, Size::Small, step as u64)
    }

    /// Makes the call. Returns why it was refused.
    fn call(mut self, call: Call) -> (Self, Option<ReleaseError>) {
        let mut error = None;
        let mut take =
            |result: Result<S::Model<R>, burn_gradient_release::Refused<S::Model<R>>>| {
                result.unwrap_or_else(|refused| {
                    let (model, why) = refused.into_parts();
                    error = Some(why);
                    model
                })
            };
        match call {
            Call::Arm => self.model = take(self.optim.try_arm(OTHER, self.model)),
            Call::ArmACopy => {
                let copy = self.model.clone();
                match self.optim.try_arm(OTHER, copy) {
                    Ok(copy) => self.model = copy,
                    Err(refused) => error = Some(refused.into()),
                }
            }
            Call::ArmByFork => {
                let (copy, model) = (self.model.clone(), &mut self.model);
                let fork = || *model = model.clone().fork(&<R as BackendTypes>::Device::default());
                let grads = GradientsParams::new();
                let armed = self.optim.try_arm_by_fork(OTHER, copy, grads, fork);
                error = armed.err().map(ReleaseError::from);
            }
            Call::Disarm => self.model = take(self.optim.try_disarm(self.model)),
            Call::DropTheOptimizer => {
                let fresh = AdamConfig::new().init().with_gradient_release();
                self.optim = match self.optim.try_to_record() {
                    Ok(record) => fresh.load_record(record),
                    Err(_) => fresh,
                };
            }
            Call::LoadARecord => {
                let record = self.optim.try_to_record().unwrap_or_default();
                self.optim = self.optim.load_record(record);
            }
            Call::ArmByAnother => {
                let mut another: Optim<S> = AdamConfig::new().init().with_gradient_release();
                self.model = take(another.try_arm(OTHER, self.model));
                self.model = take(another.try_disarm(self.model));
            }
            Call::ArmAnAccumulator => {
                let mut accumulator = ReleaseAccumulator::new();
                self.model = take(accumulator.try_arm(self.model));
            }
        }
        (self, error)
    }

    /// A whole step with nothing between.
    fn step(mut self, step: usize) -> Self {
        self.model = armed_step(RATE, self.model, &mut self.optim, |model| {
            S::loss::<R>(model, Size::Small, step as u64)
        });
        self
    }

    fn weights(&self) -> Weights {
        Weights::of(&self.model)
    }
}

fn check<S: Scenario>(start: &Start, reference: &Reference, call: Call, moment: Moment) {
    let case = format!("{call:?} {moment:?}");
    let wanted = expected(call, moment);
    let mut run = Run::<S>::new(start);
    for step in 0..CASE {
        run = run.step(step);
    }

    let mut refused = None;
    let mut make = |run: Run<S>, now: Moment| {
        if now != moment {
            return run;
        }
        let before = run.weights();
        let (run, error) = run.call(call);
        run.weights()
            .assert_same(&before, format!("{case}: the call itself"));
        refused = error;
        run
    };
    run.model = run.optim.arm(RATE, run.model);
    run = make(run, Moment::BeforeForward);
    let loss = run.loss(CASE);
    run = make(run, Moment::BeforeBackward);
    let grads = gradients(&run.model, loss);
    let parameters = trainable::<R, _>(&run.model);
    let gradients = if wanted == Expected::Ordinary {
        parameters
    } else {
        0
    };
    assert_eq!(grads.len(), gradients, "{case}: gradients left");
    run = make(run, Moment::BeforeStep);
    if wanted == Expected::Abandoned {
        return assert_abandoned(run, &reference.ordinary[CASE], grads, &case);
    }
    let (rate, expected) = match wanted {
        Expected::Released(rate) if rate == OTHER => (rate, &reference.at_another_rate),
        _ => (RATE, &reference.ordinary),
    };
    run.model = run.optim.step(rate, run.model, grads);
    let report = run.optim.last_step().expect("a step");
    assert_eq!(report.learning_rate(), rate, "{case}");
    if wanted == Expected::Ordinary {
        assert_eq!(outcomes(&report), [0, 0, parameters, 0], "{case}");
    } else {
        assert_all_released(&report, parameters);
    }
    run = make(run, Moment::AfterStep);
    assert_refusal(refused, wanted, call, parameters, &case);

    run.weights()
        .assert_same(&expected[CASE], format!("{case}: the step"));
    for (step, expected) in expected.iter().enumerate().skip(CASE + 1) {
        run = run.step(step);
        run.weights()
            .assert_same(expected, format!("{case}: step {step}"));
    }
}

/// A call is refused where it is expected to be, and for the reason that leads out.
fn assert_refusal(
    refused: Option<ReleaseError>,
    wanted: Expected,
    call: Call,
    parameters: usize,
    case: &str,
) {
    let is_right = match (&refused, wanted) {
        (Some(error), Expected::Refused) => match call {
            Call::ArmByAnother | Call::ArmAnAccumulator => {
                matches!(error, ReleaseError::ArmedElsewhere { .. })
            }
            _ => {
                let (stepped, armed) = (parameters, parameters);
                *error == ReleaseError::Unfinished { stepped, armed }
            }
        },
        (refused, _) => refused.is_none() && wanted != Expected::Refused,
    };
    assert!(is_right, "{case}: {refused:?}");
}

/// The weights are stepped, which nothing undoes, and no optimizer passes over it.
fn assert_abandoned<S: Scenario>(
    mut run: Run<S>,
    stepped: &Weights,
    grads: GradientsParams,
    case: &str,
) where
    S::Model<R>: Module<R>,
{
    run.weights().assert_same(stepped, case);
    let again = run.optim.try_step(RATE, run.model, grads);
    let (model, grads) = refused!(again, ReleaseError::Abandoned { .. });
    assert!(grads.is_empty());
    let armed = run.optim.try_arm(RATE, model);
    let (model, ()) = refused!(armed, ReleaseError::Abandoned { .. });
    // The way out that the error names.
    let model = model.fork(&<R as BackendTypes>::Device::default());
    let run = Run::<S> { model, ..run }.step(CASE + 1);
    run.weights().assert_moved(stepped, case);
}

/// Plain Burn's weights after each step.
struct Reference {
    ordinary: Vec<Weights>,
    /// With [`OTHER`] in the step of the case.
    at_another_rate: Vec<Weights>,
}

fn at_every_moment<S: Scenario>() {
    let start = Start::new::<S>(Size::Small);
    let reference = Reference {
        ordinary: plain::<S>(&start, RATE),
        at_another_rate: plain::<S>(&start, OTHER),
    };
    for call in [
        Call::Arm,
        Call::ArmACopy,
        Call::ArmByFork,
        Call::Disarm,
        Call::DropTheOptimizer,
        Call::LoadARecord,
        Call::ArmByAnother,
        Call::ArmAnAccumulator,
    ] {
        for moment in [
            Moment::BeforeForward,
            Moment::BeforeBackward,
            Moment::BeforeStep,
            Moment::AfterStep,
        ] {
            check::<S>(&start, &reference, call, moment);
        }
    }
}

#[test]
fn every_call_at_every_moment() {
    at_every_moment::<Recurrent>();
    at_every_moment::<NormalisedRecurrent>();
    at_every_moment::<Tied>();
    at_every_moment::<Views>();
}

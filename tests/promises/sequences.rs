//! Each call at each moment of a step: it does what its words say, or refuses and changes nothing.

use burn::backend::Flex;
use burn::module::Module;
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, BackendTypes};
use burn_gradient_release::{
    Outcome, ReleaseAccumulator, ReleaseError, ReleaseOptimizer, WithGradientRelease,
};

use crate::ALLOCATIONS;
use crate::harness::memory;
use crate::harness::models::{Mlp, NormalisedRecurrent, Recurrent, Scenario, Size, Tied, Views};
use crate::harness::run::{RATE, Start, assert_all_released, trainable};
use crate::harness::{Plain, Release, Weights};

type P = Plain;
type R = Release;

/// The rate that a second call asks for.
const OTHER: f64 = RATE / 7.0;
/// The step in which the call is made.
const CASE: usize = 2;
const STEPS: usize = 5;

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

/// What is to become of the step.
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

const CALLS: [Call; 8] = [
    Call::Arm,
    Call::ArmACopy,
    Call::ArmByFork,
    Call::Disarm,
    Call::DropTheOptimizer,
    Call::LoadARecord,
    Call::ArmByAnother,
    Call::ArmAnAccumulator,
];

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

/// Plain Burn's weights after each step, with another rate in the step of the case.
fn plain<S: Scenario>(start: &Start, rate: f64) -> Vec<Weights> {
    let mut model = start.model::<S, P>();
    let mut optim = AdamConfig::new().init();
    (0..STEPS)
        .map(|step| {
            let rate = if step == CASE { rate } else { RATE };
            let loss = S::loss::<P>(&model, Size::Small, step as u64);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(rate, model.clone(), grads);
            Weights::of::<P, _>(&model)
        })
        .collect()
}

/// A training run under way.
struct Run<S: Scenario> {
    model: S::Model<R>,
    optim: Optim<S>,
}

impl<S: Scenario> Run<S>
where
    S::Model<R>: Module<R>,
{
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
        self.model = self.optim.arm(RATE, self.model);
        let grads = GradientsParams::from_grads(self.loss(step).backward(), &self.model);
        self.model = self.optim.step(RATE, self.model, grads);
        self
    }

    fn weights(&self) -> Weights {
        Weights::of::<R, _>(&self.model)
    }
}

fn check<S: Scenario>(start: &Start, call: Call, moment: Moment)
where
    S::Model<R>: Module<R>,
{
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
    let grads = loss.backward();
    let grads = GradientsParams::from_grads(grads, &run.model);
    let parameters = trainable::<R, _>(&run.model);
    let gradients = if wanted == Expected::Ordinary {
        parameters
    } else {
        0
    };
    assert_eq!(grads.len(), gradients, "{case}: gradients left");
    run = make(run, Moment::BeforeStep);
    if wanted == Expected::Abandoned {
        return assert_abandoned(run, &plain::<S>(start, RATE)[CASE], grads, &case);
    }
    let rate = match wanted {
        Expected::Released(rate) => rate,
        _ => RATE,
    };
    run.model = run.optim.step(rate, run.model, grads);
    let report = run.optim.last_step().expect("a step");
    if wanted == Expected::Ordinary {
        assert_eq!(report.count(Outcome::Ordinary), parameters, "{case}");
    } else {
        assert_all_released(&report, parameters);
    }
    run = make(run, Moment::AfterStep);
    assert_eq!(
        refused.is_some(),
        wanted == Expected::Refused,
        "{case}: {refused:?}"
    );

    let expected = plain::<S>(start, rate);
    run.weights()
        .assert_same(&expected[CASE], format!("{case}: the step"));
    for (step, expected) in expected.iter().enumerate().skip(CASE + 1) {
        run = run.step(step);
        run.weights()
            .assert_same(expected, format!("{case}: step {step}"));
    }
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
    let refused = run.optim.try_step(RATE, run.model, grads).expect_err(case);
    assert!(
        matches!(refused.error(), ReleaseError::Abandoned { .. }),
        "{case}: {refused:?}"
    );
    let (model, grads) = refused.into_given();
    let refused = run.optim.try_arm(RATE, model).expect_err(case);
    assert!(
        matches!(refused.error(), ReleaseError::Abandoned { .. }),
        "{case}: {refused:?}"
    );
    assert!(grads.is_empty());
    // The way out that the error names.
    let model = refused
        .into_model()
        .fork(&<R as BackendTypes>::Device::default());
    let run = Run::<S> { model, ..run }.step(CASE + 1);
    run.weights().assert_moved(stepped, case);
}

fn every_call_at<S: Scenario>(moment: Moment)
where
    S::Model<R>: Module<R>,
{
    let start = Start::new::<S>(Size::Small);
    for call in CALLS {
        check::<S>(&start, call, moment);
    }
}

macro_rules! every_call {
    ($($name:ident: $scenario:ty;)*) => {
        $(
            mod $name {
                use super::*;

                #[test]
                fn before_forward() {
                    every_call_at::<$scenario>(Moment::BeforeForward);
                }

                #[test]
                fn between_forward_and_backward() {
                    every_call_at::<$scenario>(Moment::BeforeBackward);
                }

                #[test]
                fn between_backward_and_step() {
                    every_call_at::<$scenario>(Moment::BeforeStep);
                }

                #[test]
                fn after_step() {
                    every_call_at::<$scenario>(Moment::AfterStep);
                }
            }
        )*
    };
}

every_call! {
    mlp: Mlp;
    recurrent: Recurrent;
    normalised: NormalisedRecurrent;
    tied: Tied;
    views: Views;
}

/// Forward passes before and after a second arming, run backward together: one gradient, at the
/// second rate.
#[test]
fn one_backward_over_two_armings() {
    fn both<B: AutodiffBackend>(first: Tensor<B, 1>, second: Tensor<B, 1>) -> B::Gradients {
        (first + second * 0.5).backward()
    }

    let start = Start::new::<Recurrent>(Size::Small);
    let mut plain = start.model::<Recurrent, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut run = Run::<Recurrent>::new(&start);
    for step in 0..3 {
        let loss = |model: &_, step| Recurrent::loss::<P>(model, Size::Small, step);
        let grads = both(loss(&plain, step), loss(&plain, step + 10));
        let grads = GradientsParams::from_grads(grads, &plain);
        plain = plain_optim.step(OTHER, plain, grads);

        run.model = run.optim.arm(RATE, run.model);
        let first = run.loss(step as usize);
        run.model = run.optim.arm(OTHER, run.model);
        let second = run.loss(step as usize + 10);
        let grads = GradientsParams::from_grads(both(first, second), &run.model);
        run.model = run.optim.step(OTHER, run.model, grads);
        let report = run.optim.last_step().expect("a step");
        assert_all_released(&report, trainable::<R, _>(&run.model));
        run.weights()
            .assert_same(&Weights::of::<P, _>(&plain), step);
    }
}

/// The two run backward one after the other: the second gradient is refused, not lost.
#[test]
fn two_backwards_over_two_armings() {
    let start = Start::new::<Recurrent>(Size::Small);
    let mut run = Run::<Recurrent>::new(&start);
    run.model = run.optim.arm(RATE, run.model);
    let first = run.loss(0);
    run.model = run.optim.arm(OTHER, run.model);
    let second = run.loss(1);
    drop(GradientsParams::from_grads(first.backward(), &run.model));
    let grads = GradientsParams::from_grads(second.backward(), &run.model);
    assert!(!grads.is_empty());
    let refused = run.optim.try_step(OTHER, run.model, grads);
    let refused = refused.expect_err("a second gradient");
    assert!(matches!(
        refused.error(),
        ReleaseError::AlreadyStepped { .. }
    ));
    let (_, grads) = refused.into_given();
    assert!(!grads.is_empty(), "handed back");
}

/// An armed forward pass that is disarmed, armed again by another optimizer, and run backward.
#[test]
fn another_optimizer_takes_over_between_forward_and_backward() {
    let start = Start::new::<Views>(Size::Small);
    let mut run = Run::<Views>::new(&start);
    run.model = run.optim.arm(RATE, run.model);
    let loss = run.loss(0);
    run.model = run.optim.disarm(run.model);
    let mut another: Optim<Views> = AdamConfig::new().init().with_gradient_release();
    run.model = another.arm(OTHER, run.model);
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(grads.is_empty());
    run.model = another.step(OTHER, run.model, grads);

    let mut plain = start.model::<Views, P>();
    let grads = Views::loss::<P>(&plain, Size::Small, 0).backward();
    let grads = GradientsParams::from_grads(grads, &plain);
    plain = AdamConfig::new().init().step(OTHER, plain, grads);
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "taken over");
}

/// Gradients of earlier micro-batches stay with the model when the rate is replaced.
#[test]
fn arming_again_keeps_the_gradients_it_was_armed_with() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut run = Run::<Mlp>::new(&start);
    let earlier =
        |run: &Run<Mlp>, step| GradientsParams::from_grads(run.loss(step).backward(), &run.model);
    let (first, second) = (earlier(&run, 0), earlier(&run, 1));
    run.model = run.optim.arm_accumulated(RATE, run.model, first);
    run.model = run.optim.arm(OTHER, run.model);
    run.model = run.optim.arm_accumulated(OTHER, run.model, second);
    let grads = GradientsParams::from_grads(run.loss(2).backward(), &run.model);
    run.model = run.optim.step(OTHER, run.model, grads);

    let mut plain = start.model::<Mlp, P>();
    let mut accumulator = burn::optim::GradientsAccumulator::new();
    for step in 0..3 {
        let grads = Mlp::loss::<P>(&plain, Size::Small, step).backward();
        accumulator.accumulate(&plain, GradientsParams::from_grads(grads, &plain));
    }
    plain = AdamConfig::new()
        .init()
        .step(OTHER, plain, accumulator.grads());
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "three micro-batches");
}

/// An accumulator's own moments: its sums survive each call.
#[test]
fn an_accumulator_keeps_its_sums() {
    let start = Start::new::<Mlp>(Size::Small);
    let mut plain = start.model::<Mlp, P>();
    let mut sums = burn::optim::GradientsAccumulator::new();
    for step in 0..3 {
        let grads = Mlp::loss::<P>(&plain, Size::Small, step).backward();
        sums.accumulate(&plain, GradientsParams::from_grads(grads, &plain));
    }
    plain = AdamConfig::new().init().step(RATE, plain, sums.grads());

    let mut run = Run::<Mlp>::new(&start);
    let mut accumulator = ReleaseAccumulator::new();
    // Armed twice, with a forward pass before the second.
    run.model = accumulator.arm(run.model);
    let loss = run.loss(0);
    run.model = accumulator.arm(run.model);
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(grads.is_empty());
    accumulator.accumulate(&run.model, grads);
    // Ended between forward and backward: an ordinary gradient, added as one.
    run.model = accumulator.arm(run.model);
    let loss = run.loss(1);
    accumulator.accumulate(&run.model, GradientsParams::new());
    let grads = GradientsParams::from_grads(loss.backward(), &run.model);
    assert!(!grads.is_empty());
    accumulator.accumulate(&run.model, grads);
    // A fork that leaves everything out is refused, and the sums stay.
    let refused = accumulator.try_arm_by_fork(run.model.clone(), || {});
    assert!(matches!(refused, Err(ReleaseError::NotForked { .. })));

    run.model = run
        .optim
        .arm_accumulated(RATE, run.model, accumulator.grads());
    let grads = GradientsParams::from_grads(run.loss(2).backward(), &run.model);
    run.model = run.optim.step(RATE, run.model, grads);
    run.weights()
        .assert_same(&Weights::of::<P, _>(&plain), "three micro-batches");
}

/// The sums of one model stay when another is armed.
#[test]
fn an_accumulator_armed_with_another_model_keeps_the_sums_of_the_first() {
    let start = Start::new::<Mlp>(Size::Small);
    let (one, other) = (
        start.model::<Mlp, R>(),
        Start::new::<Mlp>(Size::Small).model::<Mlp, R>(),
    );
    let of = |model: &_, step| {
        let grads = Mlp::loss::<R>(model, Size::Small, step).backward();
        GradientsParams::from_grads(grads, model)
    };
    let mut accumulator = ReleaseAccumulator::new();
    accumulator.accumulate(&one, of(&one, 0));
    let one = accumulator.arm(one);
    let other = reidentified(other);
    let other = accumulator.arm(other);
    let grads = of(&other, 1);
    accumulator.accumulate(&other, grads);
    let mut grads = accumulator.grads();
    let (mut found, parameters) = (0, trainable::<R, _>(&one));
    for id in burn::module::list_param_ids(&one) {
        found += usize::from(grads.remove::<Flex, 1>(id).is_some());
    }
    assert_eq!(found, parameters, "of the first model");
    assert_eq!(grads.len(), parameters, "of the other model");
}

/// The same weights under new ids.
fn reidentified<M: Module<R>>(model: M) -> M {
    struct Anew;

    impl burn::module::ModuleMapper<R> for Anew {
        fn map_float<const D: usize>(
            &mut self,
            param: burn::module::Param<Tensor<R, D>>,
        ) -> burn::module::Param<Tensor<R, D>> {
            burn::module::Param::from_tensor(param.val())
        }
    }

    model.map(&mut Anew)
}

/// Dropping an optimizer asks nothing of the device, which may have failed, and frees no graph that
/// somebody may still run backward.
#[test]
fn dropping_an_armed_optimizer_only_marks() {
    memory::alone("sequences::dropping_an_armed_optimizer_only_marks", || {
        let start = Start::new::<Mlp>(Size::Small);
        let mut run = Run::<Mlp>::new(&start);
        run.model = run.optim.arm(RATE, run.model);
        let loss = run.loss(0);
        ALLOCATIONS.reset_peak_usage();
        let before = ALLOCATIONS.current_usage();
        drop(run.optim);
        assert_eq!(ALLOCATIONS.peak_usage(), before, "something was allocated");
        let grads = GradientsParams::from_grads(loss.backward(), &run.model);
        assert_eq!(grads.len(), trainable::<R, _>(&run.model));
    });
}

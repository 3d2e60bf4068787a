//! Learning rates: given at each step, owned by the optimizer, scheduled, resumed.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::cosine::{CosineAnnealingLrScheduler, CosineAnnealingLrSchedulerConfig};

use super::{Model, Optim, P, PARAMETERS, R, adam, bench, gradients, loss, start, weights};
use crate::harness::prelude::*;

const STEPS: u64 = 8;

fn cosine() -> CosineAnnealingLrScheduler {
    CosineAnnealingLrSchedulerConfig::new(0.05, 5)
        .with_min_lr(0.001)
        .init()
        .expect("the rates are in range")
}

/// Plain Burn's weights after each step.
fn plain(start: &Start, mut rates: impl LrScheduler) -> Vec<Weights> {
    let mut model = start.model::<Mlp, P>();
    let mut optim = AdamConfig::new().init();
    let steps = (0..STEPS).map(|step| {
        let loss = loss(&model, step);
        model = ordinary_step(rates.step(), model.clone(), &mut optim, loss);
        Weights::of(&model)
    });
    steps.collect()
}

/// Plain Burn's loop, which knows nothing of release: after each step the weights, and how many
/// parameters were released. It does not clone the model, which would hide one that is not armed.
fn unchanged_loop(
    mut model: Model,
    mut optim: Optim,
    mut rates: impl LrScheduler,
) -> (Vec<Weights>, Vec<usize>) {
    let (mut steps, mut released) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let grads = gradients(&model, step);
        model = optim.step(rates.step(), model, grads);
        steps.push(weights(&model));
        let report = optim.last_step().expect("a step was taken");
        released.push(report.count(Outcome::Released));
    }
    (steps, released)
}

/// The first step is ordinary, for nothing armed the model; from then on every one is released.
#[test]
fn an_owned_rate_leaves_the_loop_unchanged() {
    let start = start::<Mlp>();
    let (constant, scheduled) = (plain(&start, RATE), plain(&start, cosine()));
    assert!(!constant[STEPS as usize - 1].same(&scheduled[STEPS as usize - 1]));

    let all = [PARAMETERS; STEPS as usize];
    let mut after_the_first = all;
    after_the_first[0] = 0;
    let new = || start.model::<Mlp, R>();
    let optim = || adam().with_learning_rate(RATE);
    let mut arming = optim();
    let armed = arming.arm(RATE, new());
    let scheduling = adam().with_lr_scheduler(cosine());
    for (run, weights, released) in [
        (
            unchanged_loop(new(), optim(), RATE),
            &constant,
            after_the_first,
        ),
        (
            unchanged_loop(new(), scheduling, cosine()),
            &scheduled,
            after_the_first,
        ),
        (unchanged_loop(armed, arming, RATE), &constant, all),
    ] {
        assert_same_steps(&run.0, weights, "unchanged");
        assert_eq!(run.1, released);
    }
}

/// Where torchtune and optimi drift: after a resume the hooks kept the old rate.
#[test]
fn a_scheduler_outside_or_owned_steps_at_its_rate_and_resumes() {
    type Rates = CosineAnnealingLrScheduler;

    let start = start::<Mlp>();
    let expected = plain(&start, cosine());
    for is_owned in [false, true] {
        let new = |rates: Rates| match is_owned {
            true => adam().with_lr_scheduler(rates),
            false => adam(),
        };
        let mut model = start.model::<Mlp, R>();
        let (mut optim, mut rates) = (new(cosine()), cosine());
        for (step, expected) in expected.iter().enumerate() {
            if step == 4 {
                // As another process would start: from what the records say.
                let saved = save::<R, _>(model);
                model = load::<R, _>(start.model::<Mlp, R>(), &saved, &Default::default());
                let owned = optim.lr_scheduler::<Rates>();
                assert_eq!(owned.is_some(), is_owned);
                let record = owned.unwrap_or(&rates).to_record::<R>();
                rates = cosine().load_record::<R>(record);
                optim = new(rates).load_record(optim.to_record());
            }
            let rate = rates.step();
            if let Some(next) = optim.next_learning_rate() {
                assert_eq!(next.to_bits(), rate.to_bits(), "step {step}");
            }
            model = armed_step(rate, model, &mut optim, |model| loss(model, step as u64));
            weights(&model).assert_same(expected, step);
            let report = optim.last_step().expect("a step was taken");
            assert_all_released(&report, PARAMETERS);
            assert_eq!(report.learning_rate(), rate);
        }
    }
}

/// Each refusal hands back what it was given.
#[test]
fn an_owned_rate_refuses_another_before_it_steps() {
    const OTHER: f64 = 3.0 * RATE;

    let (model, mut another, Trajectory { first, steps }) = bench(1);
    assert_eq!(another.next_learning_rate(), None, "the next call decides");
    let mut optim: Optim = adam().with_learning_rate(RATE);
    assert_eq!(optim.next_learning_rate(), Some(RATE));
    let armed = optim.try_arm(OTHER, model);
    let (model, ()) = refused!(armed, ReleaseError::OwnedLearningRate { .. });
    weights(&model).assert_same(&first, "not armed");

    let grads = gradients(&model, 0);
    let stepped = optim.try_step(OTHER, model, grads);
    let (model, grads) = refused!(stepped, ReleaseError::LearningRate { armed, given }
        if [*armed, *given] == [RATE, OTHER]);
    weights(&model).assert_same(&first, "not stepped");

    // A re-arming that would be refused, too: the step can be made later.
    let model = another.arm(RATE, model);
    assert_eq!(another.next_learning_rate(), Some(RATE));
    let stepped = optim.try_step(RATE, model, grads);
    let (model, grads) = refused!(stepped, ReleaseError::ArmedElsewhere { .. });
    weights(&model).assert_same(&first, "not stepped");
    assert_eq!(grads.len(), PARAMETERS);
    let model = another.disarm(model);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&steps[0], "stepped once");
}

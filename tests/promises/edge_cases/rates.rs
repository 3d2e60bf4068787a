//! Learning rates: given at each step, owned by the optimizer, scheduled, resumed.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::cosine::{CosineAnnealingLrScheduler, CosineAnnealingLrSchedulerConfig};
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::AutodiffModule;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{Outcome, ReleaseError, WithGradientRelease};

use super::{Bench, Model, P, PARAMETERS, R, bench, gradients, loss, start, weights};
use crate::harness::models::{Mlp, MlpModel};
use crate::harness::run::{self, RATE, assert_all_released};
use crate::harness::weights::{load, save};
use crate::harness::{Recipe, Weights};

const STEPS: u64 = 8;

fn cosine() -> CosineAnnealingLrScheduler {
    CosineAnnealingLrSchedulerConfig::new(0.05, 5)
        .with_min_lr(0.001)
        .init()
        .expect("the rates are in range")
}

/// Plain Burn's loop, which knows nothing of release.
fn unchanged_loop<B, O, S>(mut model: MlpModel<B>, optim: &mut O, mut rates: S) -> Vec<Weights>
where
    B: AutodiffBackend,
    MlpModel<B>: AutodiffModule<B>,
    O: Optimizer<MlpModel<B>, B>,
    S: LrScheduler,
{
    (0..STEPS)
        .map(|step| {
            let loss = loss::<B>(&model, step);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(rates.step(), model.clone(), grads);
            Weights::of::<B, _>(&model)
        })
        .collect()
}

/// Arms without cloning the model, which would hide a model that is not armed.
fn owned_loop<S: LrScheduler>(
    mut model: Model,
    optim: &mut super::Optim,
    mut rates: S,
) -> (Vec<Weights>, Vec<usize>) {
    let mut steps = Vec::new();
    let mut released = Vec::new();
    for step in 0..STEPS {
        let grads = gradients(&model, step);
        model = optim.step(rates.step(), model, grads);
        steps.push(weights(&model));
        let report = optim.last_step().expect("a step was taken");
        released.push(report.count(Outcome::Released));
    }
    (steps, released)
}

#[track_caller]
fn assert_trajectory(given: &[Weights], expected: &[Weights]) {
    assert_eq!(given.len(), expected.len());
    for (step, (given, expected)) in given.iter().zip(expected).enumerate() {
        given.assert_same(expected, format!("after step {step}"));
    }
}

/// The first step is ordinary, for nothing armed the model; from then on every one is released.
#[track_caller]
fn assert_releases(released: &[usize]) {
    assert_eq!(released[0], 0);
    assert!(
        released[1..].iter().all(|count| *count == PARAMETERS),
        "{released:?}"
    );
}

#[test]
fn an_owned_rate_leaves_the_loop_unchanged() {
    let start = start::<Mlp>();
    let mut plain = AdamConfig::new().init();
    let expected = unchanged_loop(start.model::<Mlp, P>(), &mut plain, RATE);
    let mut optim = AdamConfig::new()
        .init::<R, Model>()
        .with_gradient_release()
        .with_learning_rate(RATE);
    let (given, released) = owned_loop(start.model::<Mlp, R>(), &mut optim, RATE);
    assert_trajectory(&given, &expected);
    assert_releases(&released);
}

#[test]
fn an_owned_rate_may_be_armed_from_the_first_step() {
    let Bench {
        model,
        optim,
        expected,
    } = bench(STEPS);
    let mut optim = optim.with_learning_rate(RATE);
    let model = optim.arm(RATE, model);
    let (given, released) = owned_loop(model, &mut optim, RATE);
    assert_trajectory(&given, &expected.steps);
    assert!(
        released.iter().all(|count| *count == PARAMETERS),
        "{released:?}"
    );
}

#[test]
fn an_owned_scheduler_leaves_the_loop_unchanged() {
    let start = start::<Mlp>();
    let mut plain = AdamConfig::new().init();
    let expected = unchanged_loop(start.model::<Mlp, P>(), &mut plain, cosine());
    let constant = unchanged_loop(start.model::<Mlp, P>(), &mut AdamConfig::new().init(), 0.05);
    assert!(
        !constant[STEPS as usize - 1].same(&expected[STEPS as usize - 1]),
        "it schedules"
    );

    let mut optim = AdamConfig::new()
        .init::<R, Model>()
        .with_gradient_release()
        .with_lr_scheduler(cosine());
    let (given, released) = owned_loop(start.model::<Mlp, R>(), &mut optim, cosine());
    assert_trajectory(&given, &expected);
    assert_releases(&released);
}

#[test]
fn an_owned_exponential_scheduler() {
    let rates = || {
        ExponentialLrSchedulerConfig::new(0.05, 0.7)
            .init()
            .expect("in range")
    };
    let start = start::<Mlp>();
    let mut plain = AdamConfig::new().init();
    let expected = unchanged_loop(start.model::<Mlp, P>(), &mut plain, rates());
    let mut optim = AdamConfig::new()
        .init::<R, Model>()
        .with_gradient_release()
        .with_lr_scheduler(rates());
    let (given, released) = owned_loop(start.model::<Mlp, R>(), &mut optim, rates());
    assert_trajectory(&given, &expected);
    assert_releases(&released);
}

#[test]
fn a_scheduler_outside_arms_at_its_rate() {
    let start = start::<Mlp>();
    let mut plain = AdamConfig::new().init();
    let expected = unchanged_loop(start.model::<Mlp, P>(), &mut plain, cosine());
    let mut model = start.model::<Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let mut rates = cosine();
    for (step, expected) in expected.iter().enumerate() {
        let rate = rates.step();
        model = optim.arm(rate, model);
        let grads = gradients(&model, step as u64);
        model = optim.step(rate, model, grads);
        weights(&model).assert_same(expected, step);
        let report = optim.last_step().expect("a step was taken");
        assert_all_released(&report, PARAMETERS);
        assert_eq!(report.learning_rate(), rate);
    }
}

#[test]
fn another_rate_than_the_owned_one_is_refused() {
    let Bench {
        model,
        optim,
        expected,
    } = bench(1);
    let mut optim = optim.with_learning_rate(RATE);
    let grads = gradients(&model, 0);
    let refused = optim
        .try_step(3.0 * RATE, model, grads)
        .expect_err("refused");
    let (model, error) = refused.into_parts();
    assert!(
        matches!(error, ReleaseError::LearningRate { armed, given }
            if armed == RATE && given == 3.0 * RATE),
        "{error:?}"
    );
    weights(&model).assert_same(&expected.first, "not stepped");
}

#[test]
fn arming_at_another_rate_than_the_owned_one_is_refused() {
    let Bench {
        model,
        optim,
        expected,
    } = bench(1);
    let mut optim = optim.with_learning_rate(RATE);
    let refused = optim.try_arm(3.0 * RATE, model).expect_err("refused");
    let (model, error) = refused.into_parts();
    assert!(
        matches!(error, ReleaseError::OwnedLearningRate { .. }),
        "{error:?}"
    );
    weights(&model).assert_same(&expected.first, "handed back");
}

/// Where torchtune and optimi drift: after a resume the hooks kept the old rate.
#[test]
fn resuming_with_a_scheduler_gives_the_uninterrupted_weights() {
    let start = start::<Mlp>();
    let mut plain = AdamConfig::new().init();
    let expected = unchanged_loop(start.model::<Mlp, P>(), &mut plain, cosine());

    let mut model = start.model::<Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let mut rates = cosine();
    let step_at = |optim: &mut super::Optim, model: Model, rate: f64, step: usize| {
        let model = optim.arm(rate, model);
        let grads = gradients(&model, step as u64);
        let model = optim.step(rate, model, grads);
        weights(&model).assert_same(&expected[step], step);
        model
    };
    for step in 0..4 {
        model = step_at(&mut optim, model, rates.step(), step);
    }
    let saved = (
        save::<R, _>(model),
        optim.to_record(),
        rates.to_record::<R>(),
    );

    // Another process would start here.
    let mut model = load::<R, _>(start.model::<Mlp, R>(), &saved.0, &Default::default());
    let mut optim = AdamConfig::new()
        .make::<R, Model>()
        .with_gradient_release()
        .load_record(saved.1);
    let mut rates = cosine().load_record::<R>(saved.2);
    for step in 4..STEPS as usize {
        model = step_at(&mut optim, model, rates.step(), step);
    }
}

/// The record may also be loaded into an optimizer that was already in use.
#[test]
fn loading_a_record_replaces_the_state() {
    let start = start::<Mlp>();
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), 3);
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let mut other = start.model::<Mlp, R>();
    for step in 20..23 {
        other = super::armed_step(&mut optim, other, step);
    }
    let mut optim = optim.load_record(Default::default());
    let mut model = start.model::<Mlp, R>();
    for step in 0..3 {
        model = super::armed_step(&mut optim, model, step);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

#[test]
fn the_rate_of_the_next_step() {
    let Bench {
        model, mut optim, ..
    } = bench(1);
    assert_eq!(optim.next_learning_rate(), None, "the next call decides");
    let model = optim.arm(RATE, model);
    assert_eq!(optim.next_learning_rate(), Some(RATE));
    let model = optim.disarm(model);
    let mut optim = optim.with_lr_scheduler(cosine());
    let mut rates = cosine();
    let mut model = Some(model);
    for step in 0..3 {
        let rate = rates.step();
        assert_eq!(optim.next_learning_rate(), Some(rate));
        let given = model.take().expect("a model");
        let grads = gradients(&given, step);
        model = Some(optim.step(rate, given, grads));
    }
}

/// A re-arming that would be refused is refused before the step, which can be made later.
#[test]
fn an_owned_rate_refuses_before_it_steps() {
    let Bench {
        model, mut optim, ..
    } = bench(1);
    let mut owning = AdamConfig::new()
        .init::<R, Model>()
        .with_gradient_release()
        .with_learning_rate(RATE);
    let grads = gradients(&model, 0);
    let before = weights(&model);
    let model = optim.arm(RATE, model);
    let refused = owning
        .try_step(RATE, model, grads)
        .expect_err("armed elsewhere");
    assert!(matches!(
        refused.error(),
        ReleaseError::ArmedElsewhere { .. }
    ));
    let (model, grads) = refused.into_given();
    weights(&model).assert_same(&before, "not stepped");
    assert_eq!(grads.len(), PARAMETERS);
    let model = optim.disarm(model);
    let model = owning.step(RATE, model, grads);
    weights(&model).assert_moved(&before, "stepped once");
}

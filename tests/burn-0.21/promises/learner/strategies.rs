//! A `ReleaseOptimizer` in Burn's own strategies, which arm nothing: it is Burn's optimizer. And
//! one that owns its rate, or that comes armed.

use std::sync::{Arc, Mutex};

use burn::train::{ExecutionStrategy, Learner, MultiDeviceOptim, TrainingStrategy};

use super::assert_refused;
use crate::harness::learner::*;
use crate::harness::prelude::*;

type Optim = <Released as Mode>::Optim;
type Strategy = StrategyOf<Released, Rates>;

/// Trains with one of Burn's strategies; what each training step found of the step before.
fn unarmed(
    task: &Task,
    strategy: Option<Strategy>,
    mut training: Training,
) -> (Run, Vec<StepReport>) {
    let optim = Released::optim(&training);
    let learner = Learner::new(task.model::<Release>(), optim, training.rates.clone());
    let handle = Mutex::new(Optim::handle_of(&learner).expect("the learner has one"));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let noted = reports.clone();
    training.on_step = Arc::new(move |_| {
        let report = handle.lock().expect("not poisoned").last_step();
        noted.lock().expect("not poisoned").extend(report);
    });
    let run = launch(learner, strategy, &training);
    let reports = std::mem::take(&mut *reports.lock().expect("not poisoned"));
    (run, reports)
}

#[test]
fn without_arming_it_trains_as_ever() {
    let single = || ExecutionStrategy::SingleDevice(Default::default()).into();
    let rows: [(&str, Option<Strategy>, _, _); 3] = [
        ("default", None, None, 20),
        ("default", None, Some(2), 18),
        ("single device", Some(single()), None, 20),
    ];
    let task = Task::new(Net::Chain);
    for (name, strategy, accumulation, steps) in rows {
        let training = || Training::new().accumulating(accumulation);
        let (run, reports) = unarmed(&task, strategy, training());
        let context = format!("{name} strategy, accumulation {accumulation:?}");
        run.assert_same(&train::<Stock>(&task, &training()), &context);
        assert!(
            reports.len() >= steps,
            "{context}: {} reports",
            reports.len()
        );
        for report in &reports {
            let expected = [0, 0, 6, 0];
            assert_eq!(outcomes(report), expected, "{context}: {OUTCOMES}");
        }
    }
}

/// Two devices of which Flex has one: each has its own batches, worker and gradients.
#[test]
fn on_two_devices_it_trains_as_ever() {
    fn run<D: Mode>(task: &Task, optim: MultiDeviceOptim) -> Run {
        let devices = vec![Default::default(), Default::default()];
        let strategy = TrainingStrategy::Default(ExecutionStrategy::MultiDevice(devices, optim));
        let training = Training {
            batches: 8,
            ..Training::new()
        };
        let learner = Learner::new(task.model::<D::B>(), D::optim(&training), rates());
        launch(learner, Some(strategy), &training)
    }

    let task = Task::new(Net::Chain);
    for optim in [
        MultiDeviceOptim::OptimMainDevice,
        MultiDeviceOptim::OptimSharded,
    ] {
        let stock = run::<Stock>(&task, optim);
        assert_eq!(stock.found.len(), 3 * 8, "both devices train");
        run::<Released>(&task, optim).assert_same(&stock, format!("{optim:?}"));
    }
}

/// The checkpoint carries no arming over: the resumed run is armed by its own strategy.
#[test]
fn resumed_with_another_strategy() {
    let task = Task::new(Net::Chain);
    let whole = train::<Stock>(&task, &Training::new());
    let unarmed = |task: &Task, training: &Training| {
        let (run, reports) = unarmed(task, None, training.clone());
        assert!(
            reports.is_empty(),
            "the optimizer asked is not the one resumed with"
        );
        run
    };
    let released = train::<Released>;
    resumed(
        &task,
        &Training::saving(),
        &[&released, &unarmed, &released],
        &whole,
    );
}

/// A run whose optimizer owns its rate.
fn owning(task: &Task, owned: f64, training: &Training, strategy: Option<Strategy>) -> Run {
    let optim = Released::optim(training).with_learning_rate(owned);
    let learner = Learner::new(task.model::<Release>(), optim, training.rates.clone());
    launch(learner, strategy, training)
}

/// Such an optimizer re-arms the model at the end of its step: what is saved is an armed model.
#[test]
fn an_owned_rate_that_is_the_schedulers_is_fine() {
    let task = Task::new(Net::Chain);
    let training = || Training {
        rates: constant(0.01),
        ..Training::saving()
    };
    let stock = train::<Stock>(&task, &training());
    for strategy in [Released::strategy(&training()), None] {
        let run = owning(&task, 0.01, &training(), strategy);
        run.assert_same(&stock, "the rate is the same");
        for epoch in [2, 3] {
            run.assert_saved_same(&stock, epoch);
        }
    }
}

#[test]
fn an_owned_rate_is_refused_that_is_not_the_schedulers_or_steps_in_between() {
    let task = Task::new(Net::Chain);
    for (owned, accumulation, said) in [
        (0.02, None, &["0.02", "0.01", "learning rate"][..]),
        // The micro-batches before the last must not be armed.
        (0.01, Some(2), &["gradient release: "]),
    ] {
        let training = Training {
            rates: constant(0.01),
            ..Training::unlogged().accumulating(accumulation)
        };
        assert_refused(said, || {
            owning(&task, owned, &training, Released::strategy(&training))
        });
    }
}

/// Armed by its owner before the learner got it: the strategy arms anew.
#[test]
fn a_model_that_comes_armed() {
    let task = Task::new(Net::Chain);
    let run = |training: &Training, strategy| {
        let mut optim = Released::optim(training);
        let model = optim.arm(123.0, task.model::<Release>());
        launch(Learner::new(model, optim, rates()), strategy, training)
    };
    let training = Training::new();
    let armed_anew = run(&training, Released::strategy(&training));
    armed_anew.assert_same(&train::<Stock>(&task, &Training::new()), "armed anew");

    // Burn's strategy does not, and the rate tells.
    let said = ["armed with the learning rate 123"];
    assert_refused(&said, || run(&Training::unlogged(), None));
}

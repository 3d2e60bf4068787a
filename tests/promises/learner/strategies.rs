//! A `ReleaseOptimizer` in Burn's own strategies, which arm nothing: it is Burn's optimizer.

use std::sync::{Arc, Mutex};

use burn::backend::Flex;
use burn::optim::{Adam, AdamConfig};
use burn::train::{ExecutionStrategy, Learner, MultiDeviceOptim, TrainingStrategy};
use burn_gradient_release::{ReleaseOptimizer, StepReport};
use burn_gradient_release_train::GradientReleaseStrategy;

use super::{rates, refusal, unlogged};
use crate::harness::learner::{
    Bin, Mode, ModelOf, Released, Run, Stock, Strategy, Training, launch, train,
};
use crate::harness::models::{Regression, Size};
use crate::harness::run::{Start, outcomes};
use crate::harness::{Recipe, Release};

type Model = ModelOf<Released, Regression>;
type Optim = ReleaseOptimizer<Adam, Model, Release>;

fn stock(start: &Start, training: &Training) -> Run {
    train::<Stock, Regression, _, _, _>(start, &AdamConfig::new(), rates(), training)
}

fn optim() -> Optim {
    Released::optim(AdamConfig::new().make())
}

/// Trains with Burn's strategy of that mode; what each training step found of the step before.
fn unarmed<LR>(
    start: &Start,
    strategy: Option<Strategy<Release, LR, Model, Optim>>,
    scheduler: LR,
    mut training: Training,
) -> (Run, Vec<StepReport>)
where
    LR: burn::lr_scheduler::LrScheduler + 'static,
{
    let learner = Learner::new(start.model::<Regression, Release>(), optim(), scheduler);
    let handle: Optim = ReleaseOptimizer::handle_of(&learner).expect("the learner has one");
    let (handle, reports) = (Mutex::new(handle), Arc::new(Mutex::new(Vec::new())));
    let noted = reports.clone();
    training.on_step = Arc::new(move |_| {
        let report = handle.lock().expect("not poisoned").last_step();
        noted.lock().expect("not poisoned").extend(report);
    });
    let run = launch(learner, strategy, &training);
    let reports = std::mem::take(&mut *reports.lock().expect("not poisoned"));
    (run, reports)
}

#[track_caller]
fn assert_ordinary(reports: &[StepReport], at_least: usize) {
    assert!(reports.len() >= at_least, "{} reports", reports.len());
    for report in reports {
        assert_eq!(
            outcomes(report),
            [0, 0, 6, 0],
            "released, late, ordinary, unused"
        );
    }
}

#[test]
fn the_default_strategy_trains_as_ever() {
    let start = Start::new::<Regression>(Size::Small);
    for accumulation in [None, Some(2)] {
        let training = || Training {
            accumulation,
            ..Training::new()
        };
        let (run, reports) = unarmed(&start, None, rates(), training());
        run.assert_same(&stock(&start, &training()), "unarmed");
        assert_ordinary(&reports, 18);
    }
}

#[test]
fn the_single_device_strategy_trains_as_ever() {
    let start = Start::new::<Regression>(Size::Small);
    let strategy = ExecutionStrategy::SingleDevice(Default::default()).into();
    let (run, reports) = unarmed(&start, Some(strategy), rates(), Training::new());
    run.assert_same(&stock(&start, &Training::new()), "unarmed");
    assert_ordinary(&reports, 20);
}

/// Two devices of which Flex has one: each has its own batches, worker and gradients.
fn multi_device<D: Mode>(start: &Start, optim: MultiDeviceOptim) -> Run
where
    D::B: burn::tensor::backend::AutodiffBackend<InnerBackend = Flex>,
{
    let devices = vec![Default::default(), Default::default()];
    let strategy = TrainingStrategy::Default(ExecutionStrategy::MultiDevice(devices, optim));
    let learner = Learner::new(
        start.model::<Regression, D::B>(),
        D::optim::<_, ModelOf<D, Regression>>(AdamConfig::new().make()),
        rates(),
    );
    let training = Training {
        batches: 8,
        ..Training::new()
    };
    launch(learner, Some(strategy), &training)
}

fn same_on_two_devices(optim: MultiDeviceOptim) {
    let start = Start::new::<Regression>(Size::Small);
    let stock = multi_device::<Stock>(&start, optim);
    let release = multi_device::<Released>(&start, optim);
    assert_eq!(stock.found.len(), 3 * 8, "both devices train");
    release.assert_same(&stock, format!("{optim:?}"));
}

#[test]
fn two_devices_with_one_that_steps() {
    same_on_two_devices(MultiDeviceOptim::OptimMainDevice);
}

#[test]
fn two_devices_that_share_the_step() {
    same_on_two_devices(MultiDeviceOptim::OptimSharded);
}

/// A run whose optimizer owns its rate.
fn owning(owned: f64, scheduled: f64, training: &Training) -> Run {
    let start = Start::new::<Regression>(Size::Small);
    let model = start.model::<Regression, Release>();
    let learner = Learner::new(model, optim().with_learning_rate(owned), scheduled);
    let strategy = GradientReleaseStrategy::new(Default::default());
    launch(learner, Some(strategy.into()), training)
}

#[test]
fn an_owned_rate_other_than_the_schedulers_is_refused() {
    let said = refusal(|| owning(0.02, 0.01, &unlogged()));
    assert!(said.contains("0.02") && said.contains("0.01"), "{said}");
    assert!(said.contains("learning rate"), "{said}");
}

/// Such an optimizer re-arms the model at the end of its step: what is saved is an armed model.
#[test]
fn an_owned_rate_that_is_the_schedulers_is_fine() {
    let start = Start::new::<Regression>(Size::Small);
    let training = || Training::new().saving_with(Bin::default());
    let adam = AdamConfig::new();
    let stock = train::<Stock, Regression, _, _, _>(&start, &adam, 0.01, &training());
    let owning = |strategy| {
        let model = start.model::<Regression, Release>();
        let learner = Learner::new(model, optim().with_learning_rate(0.01), 0.01);
        let run = launch(learner, strategy, &training());
        run.assert_same(&stock, "the rate is the same");
        for epoch in [2, 3] {
            let file = format!("model-{epoch}.bin");
            let [found, expected] = [&run, &stock]
                .map(|run| std::fs::read(run.directory.checkpoint(&file)).expect("saved"));
            assert!(found == expected, "{file} differs");
        }
    };
    owning(Some(
        GradientReleaseStrategy::new(Default::default()).into(),
    ));
    owning(None);
}

/// Armed by its owner before the learner got it: the strategy arms anew.
#[test]
fn a_model_that_comes_armed() {
    let start = Start::new::<Regression>(Size::Small);
    let mut optim = optim();
    let model = optim.arm(123.0, start.model::<Regression, Release>());
    let learner = Learner::new(model, optim, rates());
    let strategy = GradientReleaseStrategy::new(Default::default());
    let run = launch(learner, Some(strategy.into()), &Training::new());
    run.assert_same(&stock(&start, &Training::new()), "armed anew");

    // Burn's strategy does not, and the rate tells.
    let mut optim = self::optim();
    let model = optim.arm(123.0, start.model::<Regression, Release>());
    let said = refusal(|| launch(Learner::new(model, optim, rates()), None, &unlogged()));
    assert!(said.contains("armed with the learning rate 123"), "{said}");
}

/// Such an optimizer re-arms by itself, and the micro-batches before the last must not be armed.
#[test]
fn an_owned_rate_with_accumulation_is_refused() {
    let training = Training {
        accumulation: Some(2),
        ..unlogged()
    };
    let said = refusal(|| owning(0.01, 0.01, &training));
    assert!(said.starts_with("gradient release: "), "{said}");
}

/// The checkpoint carries no arming over: the resumed run is armed by its own strategy.
#[test]
fn resumed_with_another_strategy() {
    let start = Start::new::<Regression>(Size::Small);
    let whole = stock(&start, &Training::new());
    let training = Training::new().saving_with(Bin::default());
    let adam = AdamConfig::new();
    let until = |epochs: usize| Training {
        epochs,
        checkpoint: (epochs > 1).then(|| epochs - 1),
        ..training.clone()
    };
    train::<Released, Regression, _, _, _>(&start, &adam, rates(), &until(1));
    let (_, reports) = unarmed(&start, None, rates(), until(2));
    assert!(
        reports.is_empty(),
        "the optimizer asked is not the one resumed with"
    );
    let last = train::<Released, Regression, _, _, _>(&start, &adam, rates(), &until(3));
    assert_eq!(last.difference_from(&whole, 14), None);
}

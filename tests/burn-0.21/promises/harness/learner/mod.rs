//! One training run with burn-train's `Learner`, weights noted at every step.
//!
//! A test takes a [`Task`], says how to train in a [`Training`], runs it with [`train`] in two
//! [`Mode`]s, and compares the two [`Run`]s.

mod data;
mod mode;
mod model;
mod recorder;
mod renderer;
mod run;
mod training;

use burn::lr_scheduler::LrScheduler;
use burn::record::FileRecorder;
use burn::train::logger::InMemoryMetricLogger;
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{Learner, LearningComponentsMarker, SupervisedTraining};
use burn_gradient_release_train::metric::{
    AppliedLearningRateMetric, GradNormMetric, PeakMemoryMetric, ReleasedMetric,
};
use burn_gradient_release_train::resume::ResumedDataLoader;

use crate::harness::prelude::*;

pub(crate) use self::data::{Batch, OnStep, WeightLog};
pub(crate) use self::mode::{
    Adaptor, ByHand, Mode, OptimizerByHand, Released, Stock, Strategy, StrategyOf,
};
pub(crate) use self::model::{
    CLAMPED_TO, Net, Optimize, RegressionModel, Step, TALL_ACTIVATION, Task,
};
pub(crate) use self::recorder::Watched;
pub(crate) use self::renderer::{Renderer, Shown};
pub(crate) use self::run::{Part, Run, resumed};
pub(crate) use self::training::{Bin, Directory, Rates, Training, constant, rates};

/// Trains in this mode.
pub(crate) fn train<D: Mode>(task: &Task, training: &Training) -> Run {
    let rates = training.rates.clone();
    let learner = Learner::new(task.model::<D::B>(), D::optim(training), rates);
    launch(learner, D::strategy(training), training)
}

/// The same with a recorder of any type for the checkpoints.
pub(crate) fn train_saving<D: Mode, F>(task: &Task, training: &Training, recorder: F) -> Run
where
    F: FileRecorder<D::B> + FileRecorder<Flex> + 'static,
{
    let rates = training.rates.clone();
    let learner = Learner::new(task.model::<D::B>(), D::optim(training), rates);
    launch_saving(learner, D::strategy(training), training, Some(recorder))
}

/// Trains with stock Burn and with release. Fails unless each step has the same weights.
#[track_caller]
pub(crate) fn same(
    task: &Task,
    training: impl Fn() -> Training,
    context: impl std::fmt::Display,
) -> [Run; 2] {
    let stock = train::<Stock>(task, &training());
    let release = train::<Released>(task, &training());
    release.assert_same(&stock, context);
    [stock, release]
}

/// Trains a learner, with Burn's default strategy if there is none.
pub(crate) fn launch<B, LR, O>(
    learner: Learner<LearningComponentsMarker<B, LR, RegressionModel<B>, O>>,
    strategy: Option<Strategy<B, LR, RegressionModel<B>, O>>,
    training: &Training,
) -> Run
where
    B: AutodiffBackend<InnerBackend = Flex>,
    LR: LrScheduler + 'static,
    O: Optimizer<RegressionModel<B>, B> + 'static,
{
    let recorder = training.saves.then(Bin::default);
    launch_saving(learner, strategy, training, recorder)
}

fn launch_saving<B, LR, O, F>(
    learner: Learner<LearningComponentsMarker<B, LR, RegressionModel<B>, O>>,
    strategy: Option<Strategy<B, LR, RegressionModel<B>, O>>,
    training: &Training,
    recorder: Option<F>,
) -> Run
where
    B: AutodiffBackend<InnerBackend = Flex>,
    LR: LrScheduler + 'static,
    O: Optimizer<RegressionModel<B>, B> + 'static,
    F: FileRecorder<B> + FileRecorder<Flex> + 'static,
{
    let log = WeightLog::new(training.on_step.clone(), training.keep_weights);
    let mut train = training.loader::<B>(&log);
    if let Some(epoch) = training.checkpoint {
        train = ResumedDataLoader::new(train, epoch + 1);
    }

    let renderer = Renderer::new(training.rendering);
    let directory = training.directory.path();
    let mut supervised = SupervisedTraining::new(directory, train, training.valid_loader())
        .with_application_logger(None)
        .renderer(renderer.clone())
        .with_interrupter(training.interrupter.clone())
        .metrics((
            LossMetric::<Flex>::new(),
            LearningRateMetric::new(),
            AppliedLearningRateMetric::new(&training.monitor),
            ReleasedMetric::new(&training.monitor),
            PeakMemoryMetric::new(&training.monitor),
            GradNormMetric::new(&training.monitor),
        ))
        .num_epochs(training.epochs);
    if let Some(strategy) = strategy {
        supervised = supervised.with_training_strategy(strategy);
    }
    if let Some(micro_batches) = training.accumulation {
        supervised = supervised.grads_accumulation(micro_batches);
    }
    if let Some(recorder) = recorder {
        supervised = supervised.with_file_checkpointer(recorder);
    }
    if let Some(epoch) = training.checkpoint {
        supervised = supervised.checkpoint(epoch);
    }
    let keep = training.settled((training.keep)(), &renderer);
    supervised = supervised.with_checkpointing_strategy(keep);
    if let Some(strategy) = training.early_stopping.clone() {
        supervised = supervised.early_stopping(training.settled(strategy, &renderer));
    }
    if training.metrics_in_memory {
        supervised = supervised.with_metric_logger(InMemoryMetricLogger::new());
    }
    if training.summary {
        supervised = supervised.summary();
    }
    let result = supervised.launch(learner);
    Run {
        found: log.take(),
        last: Weights::of(&result.model),
        given: result.model.given(),
        renderer,
        directory: training.directory.clone(),
    }
}

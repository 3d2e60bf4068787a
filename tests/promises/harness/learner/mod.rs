//! One training run with burn-train's `Learner`, weights noted at every step.

mod batch;
mod directory;
mod mode;
mod renderer;
mod run;
mod settling;
mod task;
mod training;

use std::fmt::Display;

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::module::AutodiffModule;
use burn::optim::Optimizer;
use burn::record::FileRecorder;
use burn::tensor::backend::AutodiffBackend;
use burn::train::logger::InMemoryMetricLogger;
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    InferenceStep, Learner, LearningComponentsMarker, SupervisedTraining, TrainStep,
};
use burn_gradient_release_train::metric::{
    AppliedLearningRateMetric, GradNormMetric, PeakMemoryMetric, ReleasedMetric,
};
use burn_gradient_release_train::resume::ResumedDataLoader;

use self::settling::Settling;
use super::run::Start;
use super::{Recipe, Weights};

pub(crate) use self::batch::{Batch, OnStep, WeightLog};
pub(crate) use self::directory::Directory;
pub(crate) use self::mode::{Mode, ModelOf, Released, Stock, Strategy, StrategyOf};
pub(crate) use self::renderer::{Renderer, Shown};
pub(crate) use self::run::Run;
pub(crate) use self::task::{LossOutput, Task, inference_step, task, train_step};
pub(crate) use self::training::{Bin, Training};

/// Trains from `start` in this mode.
pub(crate) fn train<D, T, R, LR, F>(
    start: &Start,
    recipe: &R,
    scheduler: LR,
    training: &Training<F>,
) -> Run
where
    D: Mode,
    T: Task,
    R: Recipe,
    LR: LrScheduler + 'static,
    F: FileRecorder<D::B> + FileRecorder<Flex> + 'static,
{
    let optim = D::optim(recipe.make::<D::B, T::Model<D::B>>());
    let learner = Learner::new(T::model::<D::B>(start), optim, scheduler);
    let strategy = D::strategy::<T, LR, _>(training.monitor.clone());
    launch(learner, strategy, training)
}

/// Trains a learner, with Burn's default strategy if there is none.
pub(crate) fn launch<B, LR, M, O, F>(
    learner: Learner<LearningComponentsMarker<B, LR, M, O>>,
    strategy: Option<Strategy<B, LR, M, O>>,
    training: &Training<F>,
) -> Run
where
    B: AutodiffBackend<InnerBackend = Flex>,
    LR: LrScheduler + 'static,
    M: TrainStep<Input = Batch, Output = LossOutput<B>> + AutodiffModule<B> + Display + 'static,
    M::InnerModule: InferenceStep<Input = Batch, Output = LossOutput<Flex>>,
    O: Optimizer<M, B> + 'static,
    F: FileRecorder<B> + FileRecorder<Flex> + 'static,
{
    let log = WeightLog::new(training.on_step.clone(), training.keep_weights);
    let mut train = training.loader::<B>(&log);
    if let Some(epoch) = training.checkpoint.filter(|_| training.skips_epochs) {
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
    if let Some(recorder) = training.recorder.clone() {
        supervised = supervised.with_file_checkpointer(recorder);
    }
    if let Some(epoch) = training.checkpoint {
        supervised = supervised.checkpoint(epoch);
    }
    let settling = Settling::new(training, &renderer);
    supervised = supervised.with_checkpointing_strategy(settling.strategy((training.keep)()));
    if let Some(strategy) = training.early_stopping.clone() {
        supervised = supervised.early_stopping(settling.strategy(strategy));
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
        last: Weights::of::<Flex, _>(&result.model),
        renderer,
        directory: training.directory.clone(),
    }
}

//! Trains a classifier of reviews with Burn's `Learner`.

use std::path::Path;

use anyhow::Result;
use burn::{
    backend::{Autodiff, Flex},
    data::dataloader::DataLoaderBuilder,
    lr_scheduler::noam::NoamLrSchedulerConfig,
    prelude::*,
    record::{CompactRecorder, Recorder},
    train::{
        Learner, SupervisedTraining,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric},
    },
};
use burn_gradient_release::{GradientRelease, Recompute, WithGradientRelease};
use burn_gradient_release_train::GradientReleaseStrategy;

use super::{ExperimentConfig, create_artifact_dir};
use crate::{
    data::{CLASSES, Reviews, TextClassificationBatcher},
    memory::PeakHeapMetric,
    model::{TextClassificationModel, TextClassificationModelConfig},
    renderer,
};

type B = GradientRelease<Autodiff<Flex>>;

/// Trains a classifier of reviews.
///
/// # Errors
///
/// If the artifacts cannot be written.
pub fn train(
    config: &ExperimentConfig,
    artifact_dir: &Path,
) -> Result<TextClassificationModel<Flex>> {
    create_artifact_dir(artifact_dir)?;
    config.save(artifact_dir.join("config.json"))?;

    let device = Default::default();
    B::seed(&device, config.seed);

    let reviews = Reviews::new(config.num_names);
    let tokenizer = reviews.tokenizer();
    let batcher = TextClassificationBatcher::new(tokenizer.clone(), config.seq_length);
    let dataloader_train = DataLoaderBuilder::new(batcher.clone())
        .batch_size(config.batch_size)
        .shuffle(config.seed)
        .build(reviews.train(config.num_train));
    let dataloader_valid = DataLoaderBuilder::new(batcher)
        .batch_size(config.batch_size)
        .build(reviews.valid(config.num_valid));

    let model = TextClassificationModelConfig::new(
        config.transformer.clone(),
        CLASSES.len(),
        tokenizer.vocab_size(),
        config.seq_length,
    )
    .init::<B>(&device);
    let optim = config.optimizer.init().with_gradient_release();
    let strategy = GradientReleaseStrategy::new(device).with_recompute(Recompute::Automatic);
    let lr_scheduler = NoamLrSchedulerConfig::new(config.lr_factor)
        .with_warmup_steps(config.warmup_steps)
        .with_model_size(config.transformer.d_model)
        .init()
        .map_err(anyhow::Error::msg)?;

    let training = SupervisedTraining::new(artifact_dir, dataloader_train, dataloader_valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .metric_train_numeric(PeakHeapMetric::new())
        .with_file_checkpointer(CompactRecorder::new())
        .with_training_strategy(strategy.into())
        .num_epochs(config.num_epochs)
        .summary();
    let training = renderer::for_this_output(training);

    let result = training.launch(Learner::new(model, optim, lr_scheduler));

    let record = result.model.clone().into_record();
    CompactRecorder::new().record(record, artifact_dir.join("model"))?;
    Ok(result.model)
}

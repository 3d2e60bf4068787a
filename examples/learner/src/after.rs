//! The training with gradient release.

use anyhow::{Result, bail};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn::train::SupervisedTraining;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn_lean::train::{GradientReleaseStrategy, release_learner};

use crate::data::loaders;
use crate::model::Classifier;
use crate::{EPOCHS, FOLDER};

/// Trains, and returns the model.
pub(crate) fn train() -> Result<Classifier> {
    let device = Device::flex().autodiff();
    let (train, valid) = loaders(&device)?;
    let model = Classifier::new(&device);
    let steps = EPOCHS * train.num_items().div_ceil(crate::data::BATCH);
    let schedule = CosineAnnealingLrSchedulerConfig::new(2e-3, steps).init();
    let schedule = schedule.map_err(anyhow::Error::msg)?;
    let optim = AdamWConfig::new().init();
    let training = SupervisedTraining::new(FOLDER, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .with_training_strategy(GradientReleaseStrategy::new(device).into())
        .num_epochs(EPOCHS)
        .summary();
    let learner = release_learner(model, optim, schedule);
    let result = training.launch(learner);
    // A full disk, or data that cannot be read, has ended the training.
    if let Some(error) = result.error {
        bail!("{error}");
    }
    Ok(result.model)
}

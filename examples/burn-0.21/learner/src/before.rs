//! The training on plain Burn.

use anyhow::Result;
use burn::backend::{Autodiff, Flex};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::AdamWConfig;
use burn::record::DefaultRecorder;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, SupervisedTraining};

use crate::data::loaders;
use crate::model::Classifier;
use crate::{EPOCHS, FOLDER};

type B = Autodiff<Flex>;

/// Trains, and returns the model.
pub(crate) fn train() -> Result<Classifier<Flex>> {
    let device = Default::default();
    let (train, valid) = loaders::<B>()?;
    let model = Classifier::<B>::new(&device);
    let steps = EPOCHS * train.num_items().div_ceil(crate::data::BATCH);
    let schedule = CosineAnnealingLrSchedulerConfig::new(2e-3, steps).init();
    let schedule = schedule.map_err(anyhow::Error::msg)?;
    let optim = AdamWConfig::new().init();
    let training = SupervisedTraining::new(FOLDER, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_file_checkpointer(DefaultRecorder::new())
        .num_epochs(EPOCHS)
        .summary();
    let learner = Learner::new(model, optim, schedule);
    Ok(training.launch(learner).model)
}

//! The training loop.

use crate::backend::{Job, Session};
use crate::checkpoint::Artifacts;
use crate::config::TrainConfig;
use crate::data::{Batch, Dataset, Split};
use crate::digest;
use crate::memory::Meter;
use crate::mode::Stepper;
use crate::model::Vit;
use crate::rng::SplitMix64;
use anyhow::{Context, Result, anyhow, ensure};
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, ElementConversion};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// What keeps the random numbers of one purpose apart from those of another.
const ORDER: u64 = 1;
const DROPOUT: u64 = 2;

/// Part of the steps in which the learning rate climbs to its height.
const WARM_UP: f64 = 0.1;

/// How far a run has come; saved with every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: usize,
    /// Sum of the losses of all images in the epoch that is under way.
    pub loss_sum: f64,
    /// The epochs that are done.
    pub epochs: Vec<Epoch>,
}

/// What came of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Mean loss over the training images while they trained.
    pub train_loss: f64,
    /// Part of the validation images that are classified correctly.
    pub validation_accuracy: f64,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Part of the validation images that are classified correctly.
    pub validation_accuracy: f64,
    /// Mean loss over the training images in the last epoch.
    pub train_loss: f64,
    /// Epochs trained.
    pub epochs: usize,
    /// The most bytes on the heap at once since before the model was built; none on a GPU.
    pub peak_bytes: Option<u64>,
    /// SHA-256 of the weights.
    pub weights_digest: String,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// All epochs are done.
    Finished(Results),
    /// Stopped, with a checkpoint, after this many steps.
    Stopped(usize),
}

/// A training run.
#[derive(Debug)]
pub struct Train<'a> {
    /// What was chosen.
    pub config: &'a TrainConfig,
    /// The images.
    pub data: &'a Dataset,
    /// Where settings, checkpoints and results go.
    pub artifacts: &'a Artifacts,
    /// Whether to go on from the checkpoint there.
    pub resume: bool,
    /// Set from elsewhere, it stops the run after the step under way.
    pub stop: &'a AtomicBool,
    /// Stops the run when this many steps are done.
    pub stop_after: Option<usize>,
}

impl Job for Train<'_> {
    type Output = Ending;

    fn run<B: AutodiffBackend>(self, session: Session<B>) -> Result<Ending> {
        let Session {
            device,
            mut optimizer,
            ..
        } = session;
        let config = self.config;
        let meter = Meter::start();

        B::seed(&device, config.seed);
        let mut model = config.model.init::<B>(&device);
        // Parameters are drawn when first looked at: look now, in the order of the model.
        debug_assert_eq!(model.num_params(), config.model.num_params());
        let _ = model.num_params();
        let mut scheduler = self.scheduler()?;
        let mut progress = Progress::default();
        if self.resume {
            let optimizer = optimizer.as_mut();
            (progress, model, scheduler) =
                self.artifacts.load(model, optimizer, scheduler, &device)?;
            self.artifacts.save_settings(config)?;
        } else {
            self.artifacts.start(config)?;
        }
        meter.reset_peak();

        let bar = self.progress_bar(progress.step as u64);
        while progress.epochs.len() < config.epochs {
            let loss = CrossEntropyLossConfig::new().init(&device);
            let order = SplitMix64::new(&[config.seed, ORDER, progress.epochs.len() as u64])
                .permutation(self.data.train.len());
            let done = progress.step - progress.epochs.len() * self.steps_per_epoch();
            for indices in order.chunks(config.batch_size).skip(done) {
                let step = Step {
                    seed: SplitMix64::new(&[config.seed, DROPOUT, progress.step as u64]).next_u64(),
                    lr: scheduler.step(),
                };
                let batch = Batch::new(self.data, &self.data.train, indices, &device);
                let value;
                (model, value) = step.run(model, optimizer.as_mut(), &loss, batch, &device)?;
                progress.step += 1;
                ensure!(
                    value.is_finite(),
                    "the loss is {value} after step {}: try a smaller --lr",
                    progress.step
                );
                progress.loss_sum += value * indices.len() as f64;
                bar.inc(1);
                bar.set_message(format!("loss {value:.4}"));
                if self.is_to_stop(progress.step) {
                    let optimizer = optimizer.as_ref();
                    self.artifacts
                        .save(&progress, &model, optimizer, &scheduler)?;
                    bar.finish_and_clear();
                    return Ok(Ending::Stopped(progress.step));
                }
            }

            let epoch = Epoch {
                train_loss: progress.loss_sum / self.data.train.len() as f64,
                validation_accuracy: accuracy(
                    &model.valid(),
                    self.data,
                    &self.data.validation,
                    config.batch_size,
                    &device,
                ),
            };
            progress.epochs.push(epoch.clone());
            progress.loss_sum = 0.0;
            bar.suspend(|| {
                eprintln!(
                    "epoch {:>3}/{}  loss {:.4}  validation accuracy {:.2} %",
                    progress.epochs.len(),
                    config.epochs,
                    epoch.train_loss,
                    epoch.validation_accuracy * 100.0
                );
            });
            self.artifacts
                .save(&progress, &model, optimizer.as_ref(), &scheduler)?;
        }
        bar.finish_and_clear();

        let last = progress.epochs.last().context("no epoch was trained")?;
        let results = Results {
            validation_accuracy: last.validation_accuracy,
            train_loss: last.train_loss,
            epochs: progress.epochs.len(),
            peak_bytes: config.engine.backend.is_on_heap().then(|| meter.peak()),
            weights_digest: digest::weights(&model),
        };
        self.artifacts.save_results(&results)?;
        Ok(Ending::Finished(results))
    }
}

impl Train<'_> {
    fn steps_per_epoch(&self) -> usize {
        self.data.train.len().div_ceil(self.config.batch_size)
    }

    fn is_to_stop(&self, step: usize) -> bool {
        self.stop.load(Ordering::Relaxed) || self.stop_after.is_some_and(|last| step >= last)
    }

    fn progress_bar(&self, done: u64) -> ProgressBar {
        let steps = (self.config.epochs * self.steps_per_epoch()) as u64;
        let style = ProgressStyle::with_template("{wide_bar} step {pos}/{len}  {msg}  {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(steps)
            .with_position(done)
            .with_style(style)
    }

    fn scheduler(&self) -> Result<ComposedLrScheduler> {
        let steps = self.config.epochs * self.steps_per_epoch();
        let warm_up = ((steps as f64 * WARM_UP) as usize).max(1);
        ComposedLrSchedulerConfig::new()
            .cosine(CosineAnnealingLrSchedulerConfig::new(
                self.config.learning_rate,
                steps,
            ))
            .linear(LinearLrSchedulerConfig::new(
                1.0 / (warm_up + 1) as f64,
                1.0,
                warm_up,
            ))
            .init()
            .map_err(|text| anyhow!("the learning rate cannot be scheduled: {text}"))
    }
}

/// One step: what a training loop with gradient release looks like.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Seed of the step's own random numbers: a resumed run draws what the first one drew.
    pub seed: u64,
    /// The learning rate.
    pub lr: f64,
}

impl Step {
    /// Trains on one batch; gives the loss before the step.
    pub fn run<B: AutodiffBackend>(
        self,
        mut model: Vit<B>,
        optimizer: &mut dyn Stepper<B>,
        loss: &CrossEntropyLoss<B>,
        batch: Batch<B>,
        device: &Device<B>,
    ) -> Result<(Vit<B>, f64)> {
        B::seed(device, self.seed);
        model = optimizer.arm(self.lr, model)?;
        let loss = loss.forward(model.forward(batch.images), batch.labels);
        let value = loss.clone().into_scalar().elem::<f64>();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(self.lr, model, grads)?;
        Ok((model, value))
    }
}

/// Part of the images that the model classifies correctly.
fn accuracy<B: Backend>(
    model: &Vit<B>,
    data: &Dataset,
    split: &Split,
    batch_size: usize,
    device: &Device<B>,
) -> f64 {
    let indices: Vec<usize> = (0..split.len()).collect();
    let correct: i64 = indices
        .chunks(batch_size)
        .map(|indices| {
            let batch = Batch::<B>::new(data, split, indices, device);
            let best = model.forward(batch.images).argmax(1).flatten(0, 1);
            best.equal(batch.labels)
                .int()
                .sum()
                .into_scalar()
                .elem::<i64>()
        })
        .sum();
    correct as f64 / split.len().max(1) as f64
}

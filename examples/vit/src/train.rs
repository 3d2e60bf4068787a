//! A training run: an ordinary Burn loop, and what gradient release adds to it.

use crate::config::{Checkpointing, Operations, TrainConfig};
use crate::device;
use crate::digest;
use crate::memory::HighWater;
use crate::model::{LeanVit, Model, Vit};
use crate::progress::Progress;
use crate::release::Stepper;
use crate::run_folder::{Checkpoint, Finished, RunFolder};
use crate::schedule::Schedule;
use anyhow::{Context, Result, ensure};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_lean::DataParallel;
use vit_common::data::{Dataset, Image, Normalization, Split, labels};
use vit_common::rng::SeededRng;

pub use vit_common::results::Results;

/// Seeds of different purposes, derived from the seed of the run.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// The order of the images in an epoch.
    Order,
    /// The dropout of an iteration.
    Dropout,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub enum Ending {
    /// All epochs are done.
    Finished(Results),
    /// `--stop-after` stopped it; the epoch is that of the newest checkpoint.
    Stopped(Option<usize>),
    /// The process is not the first of several, which has the results.
    OfAnotherRank,
}

/// Loss and accuracy on the validation images.
#[derive(Clone, Copy, Debug)]
pub struct Validation {
    /// Mean loss.
    pub loss: f64,
    /// Fraction of the images that are classified correctly.
    pub accuracy: f64,
}

/// A training run.
#[derive(Debug)]
pub struct Train<'a> {
    /// The settings.
    pub config: &'a TrainConfig,
    /// The images.
    pub data: &'a Dataset,
    /// The processes that train together, if there are several.
    pub parallel: Option<&'a DataParallel>,
    /// The folder of settings, checkpoints and results.
    pub folder: &'a RunFolder,
    /// Where tensors are.
    pub device: Device,
    /// Stops the run after this many batches, counted from the first epoch.
    pub stop_after: Option<usize>,
}

impl Train<'_> {
    /// Trains from the checkpoint, or from random weights.
    pub fn run(self, from: Option<Checkpoint>) -> Result<Ending> {
        match self.config.engine.operations {
            Operations::Default => self.run_with::<Vit>(from),
            Operations::Lean => self.run_with::<LeanVit>(from),
        }
    }

    fn run_with<M: Model>(self, from: Option<Checkpoint>) -> Result<Ending> {
        let config = self.config;
        let mut memory = HighWater::start(&self.device);
        let autodiff = self.autodiff();
        let mut optimizer = Stepper::new(config, self.parallel);
        self.device.seed(config.seed);
        let mut model = M::new(&config.model, &autodiff)
            .recomputing(config.engine.checkpointing.recomputed())
            .drawn();
        let mut done = 0;
        let mut train_loss = 0.0;
        if let Some(checkpoint) = &from {
            done = checkpoint.epoch();
            train_loss = checkpoint.train_loss();
            model = checkpoint.load_model(model)?;
        }
        if let Some(parallel) = self.parallel {
            let epoch = format!("the beginning of epoch {}", done + 1);
            parallel.replicas().meet(&epoch)?;
            model = parallel.broadcast(model)?;
        }
        if let Some(checkpoint) = &from {
            optimizer = checkpoint.load_optimizer(optimizer, self.parallel)?;
        }

        let batches = self.data.train.len().div_ceil(config.batch_size);
        let iterations = config.iterations(self.data.train.len())?;
        let schedule = Schedule::new(config.learning_rate, iterations);
        let progress = Progress::new(config.epochs, batches);
        for epoch in done + 1..=config.epochs {
            let order = self
                .rng(Purpose::Order, epoch)
                .permutation(self.data.train.len());
            let mut losses = Vec::new();
            for (index, places) in order.chunks(config.batch_size).enumerate() {
                let iteration = (epoch - 1) * batches + index;
                if self.stop_after.is_some_and(|last| iteration >= last) {
                    self.show_peaks(&memory, progress)?;
                    let ending = Ending::Stopped((epoch > 1).then_some(epoch - 1));
                    return Ok(if self.is_first() {
                        ending
                    } else {
                        Ending::OfAnotherRank
                    });
                }
                let places = self.share(places);
                let batch = Batch::new(
                    &images(&self.data.train, places)?,
                    &self.data.normalization(),
                    &autodiff,
                );
                // The dropout of a resumed run is that of the uninterrupted one.
                let dropout = self.rng_of_dropout(iteration).next_u64();

                let rate = schedule.rate(iteration);
                // From here on, a parameter steps as soon as the backward pass has its gradient.
                model = optimizer.arm(rate, model)?;
                let loss = cross_entropy(model.forward_seeded(batch.images, dropout), batch.labels);
                losses.push((loss.clone().without_autodiff(), places.len()));
                memory.look();
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                drop(loss);
                model = optimizer.step(rate, model, grads)?;
                memory.look();
                if self.is_first() {
                    progress.batch(epoch, index + 1);
                }
            }
            train_loss = self.mean_of_all(losses)?;
            ensure!(
                train_loss.is_finite(),
                "the loss is {train_loss} in epoch {epoch}: try a smaller --lr"
            );
            if let Some(parallel) = self.parallel {
                // What is saved is what all of them have.
                parallel.verify(&model)?;
            }
            if self.is_first() {
                let validation = self.validate(&model)?;
                progress.epoch(epoch, train_loss, validation, &memory);
                let finished = Finished {
                    epoch,
                    train_loss,
                    model: &model,
                    optimizer: &optimizer,
                };
                self.folder.save(config, self.parallel, finished)?;
            } else {
                self.folder.take_part_in_save(self.parallel, &optimizer)?;
            }
        }
        self.show_peaks(&memory, progress)?;
        if !self.is_first() {
            return Ok(Ending::OfAnotherRank);
        }

        // Before the validation, which is not part of the training.
        let peak = memory.peak();
        let results = Results {
            validation_accuracy: self.validate(&model)?.accuracy,
            train_loss,
            epochs: config.epochs,
            peak_bytes: peak.in_use,
            peak_reserved_bytes: peak.reserved,
            weights_digest: digest::weights(&model),
        };
        self.folder.save_results(&results)?;
        Ok(Ending::Finished(results))
    }

    /// Whether this is the one process that shows and writes what is the same in all.
    fn is_first(&self) -> bool {
        is_first(self.parallel)
    }

    /// Says what each of several processes has taken at most.
    fn show_peaks(&self, memory: &HighWater, progress: Progress) -> Result<()> {
        if let Some(parallel) = self.parallel {
            let own = memory.peak().in_use as f64;
            let peaks = parallel.replicas().numbers("the peaks of memory", own)?;
            if self.is_first() {
                progress.peaks(&peaks);
            }
        }
        Ok(())
    }

    /// What this process trains on, of a batch of all processes.
    fn share<'b>(&self, places: &'b [usize]) -> &'b [usize] {
        match self.parallel {
            None => places,
            Some(parallel) => &places[parallel.replicas().share(places.len())],
        }
    }

    /// The dropout of a process is other than that of the first.
    fn rng_of_dropout(&self, iteration: usize) -> SeededRng {
        match self
            .parallel
            .map_or(0, |parallel| parallel.replicas().rank())
        {
            0 => self.rng(Purpose::Dropout, iteration),
            rank => {
                let purpose = Purpose::Dropout as u64;
                SeededRng::new(&[self.config.seed, purpose, iteration as u64, rank as u64])
            }
        }
    }

    /// The mean loss over the images of all processes.
    fn mean_of_all(&self, losses: Vec<(Tensor<1>, usize)>) -> Result<f64> {
        let (mut sum, mut count) = sum_of(losses);
        if let Some(parallel) = self.parallel {
            let replicas = parallel.replicas();
            sum = replicas.numbers("the losses", sum)?.iter().sum();
            count = self.data.train.len();
        }
        Ok(sum / count.max(1) as f64)
    }

    /// The device of the model in training.
    fn autodiff(&self) -> Device {
        let device = self.device.clone().autodiff();
        match self.config.engine.checkpointing {
            Checkpointing::Balanced => device.gradient_checkpointing(),
            Checkpointing::None | Checkpointing::Blocks | Checkpointing::Nested => device,
        }
    }

    /// Random numbers for an epoch or an iteration.
    fn rng(&self, purpose: Purpose, number: usize) -> SeededRng {
        SeededRng::new(&[self.config.seed, purpose as u64, number as u64])
    }

    fn validate(&self, model: &impl Model) -> Result<Validation> {
        let model = model.valid();
        let split = &self.data.validation;
        let places: Vec<usize> = (0..split.len()).collect();
        let mut losses = Vec::new();
        let mut correct = 0;
        for places in places.chunks(self.config.batch_size) {
            let images = images(split, places)?;
            let batch = Batch::new(&images, &self.data.normalization(), &self.device);
            let scores = model.forward(batch.images);
            let best = scores.clone().argmax(1).flatten::<1>(0, 1);
            let hits = best.equal(batch.labels.clone()).int().sum();
            correct += hits.into_scalar::<i64>();
            losses.push((cross_entropy(scores, batch.labels), places.len()));
        }
        Ok(Validation {
            loss: mean(losses),
            accuracy: correct as f64 / split.len().max(1) as f64,
        })
    }
}

fn cross_entropy(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&scores.device())
        .forward(scores, labels)
}

/// The mean over images of the losses of batches.
fn mean(losses: Vec<(Tensor<1>, usize)>) -> f64 {
    let (sum, count) = sum_of(losses);
    sum / count.max(1) as f64
}

/// The sum over images of the losses of batches, and the number of images.
fn sum_of(losses: Vec<(Tensor<1>, usize)>) -> (f64, usize) {
    let mut sum = 0.0;
    let mut count = 0;
    for (loss, images) in losses {
        sum += loss.into_scalar::<f64>() * images as f64;
        count += images;
    }
    (sum, count)
}

fn images(split: &Split, places: &[usize]) -> Result<Vec<Image>> {
    let image = |place: &usize| split.get(*place).context("an image is missing");
    places.iter().map(image).collect()
}

/// A batch of images with their labels, on a device.
struct Batch {
    /// `[batch, channels, size, size]`
    images: Tensor<4>,
    /// `[batch]`
    labels: Tensor<1, Int>,
}

impl Batch {
    fn new(images: &[Image], normalization: &Normalization, device: &Device) -> Self {
        let (pixels, shape) = normalization.pixels(images);
        Self {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels(images), [images.len()]), device),
        }
    }
}

/// Whether this is the first of several processes, or the only one.
pub fn is_first(parallel: Option<&DataParallel>) -> bool {
    parallel.is_none_or(|parallel| parallel.replicas().is_first())
}

/// Opens the device of the settings and trains on it.
pub fn run(
    config: &TrainConfig,
    data: &Dataset,
    parallel: Option<&DataParallel>,
    folder: &RunFolder,
    from: Option<Checkpoint>,
    stop_after: Option<usize>,
) -> Result<Ending> {
    let device = device::open(config.engine.device)?;
    Train {
        config,
        data,
        parallel,
        folder,
        device,
        stop_after,
    }
    .run(from)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn_lean::Threads;
    use vit_common::data::{ImageSize, Source};

    /// Trains two replicas with weight decays of their own, which nobody compares before.
    fn train(decays: [f64; 2], folder: &RunFolder) -> Vec<Result<Ending>> {
        let size = ImageSize {
            requested: None,
            patch_size: 2,
        };
        let data = Dataset::load(&Source::Digits, size).unwrap();
        Threads::run(2, |replicas| {
            let config = TrainConfig {
                epochs: 1,
                batch_size: 512,
                weight_decay: decays[replicas.rank()],
                ..TrainConfig::example()
            };
            let parallel = DataParallel::new(replicas);
            run(&config, &data, Some(&parallel), folder, None, None)
        })
    }

    #[test]
    fn weights_that_have_drifted_apart_are_not_saved() {
        let home = tempfile::tempdir().unwrap();
        for (decays, is_saved) in [([0.05, 0.1], false), ([0.05; 2], true)] {
            let path = home.path().join(is_saved.to_string());
            let folder = RunFolder::create(&path, false).unwrap();
            folder.start(&TrainConfig::example()).unwrap();
            for ended in train(decays, &folder) {
                match ended {
                    Ok(_) => assert!(is_saved),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(!is_saved && text.contains(", digest "), "{text}");
                    }
                }
            }
            assert_eq!(path.join("checkpoint/epoch-1").exists(), is_saved);
        }
    }
}

//! The training: an ordinary Burn loop, and what gradient release adds to it.

use crate::digest;
use crate::memory::Memory;
use crate::model::{LeanVit, Model, Vit, drawn};
use crate::optimizer::Optimizer;
use crate::settings::{Checkpointing, Mode, Operations, Settings, WARM_UP};
use anyhow::{Context, Result, ensure};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::store::ModuleRecord;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::timeline::{self, RecordError, Recording};
use burn_lean::{DataParallel, MixedPrecision, ReleaseError, ReplicaError, Replicas};
use lean_run_folder::CannotWrite;
use std::f64::consts::PI;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use vit_common::data::{Image, Split, labels};
use vit_common::progress;
use vit_common::results::Results;
use vit_common::rng::SeededRng;
use vit_common::run::{Ending, Options, Run};

/// What is saved after an epoch. Of the state, there is the mean loss of the training batches.
pub const PARTS: [&str; 3] = [MODEL, OPTIMIZER, STATE];
const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optim.bpk";
const STATE: &str = "state.json";

/// A training run.
#[derive(Debug)]
pub struct Train<'a> {
    /// Its settings, images and checkpoints.
    pub run: &'a Run<Settings>,
    /// When it stops, and what it records.
    pub options: &'a Options<Settings>,
    /// The processes that train together, if there are several.
    pub parallel: Option<DataParallel>,
    /// Where tensors are.
    pub device: Device,
}

/// What has become of the recording of the memory, if there is one.
type Recorded = Result<(), RecordError>;

impl Train<'_> {
    /// Trains from the checkpoint to resume from, or from random weights. Returns what has become of the
    /// recording as well.
    ///
    /// # Errors
    ///
    /// The loss is not finite; a checkpoint cannot be read or written; the processes do not do the
    /// same; the training was stopped before anything was recorded.
    pub fn run(&self, recording: Option<Recording>) -> Result<(Ending, Recorded)> {
        match self.run.settings.operations {
            Operations::Default => self.run_with::<Vit>(recording),
            Operations::Lean => self.run_with::<LeanVit>(recording),
        }
    }

    fn run_with<M: Model>(&self, recording: Option<Recording>) -> Result<(Ending, Recorded)> {
        let Run { settings, data, .. } = self.run;
        let train = &settings.train;
        let (epochs, batches) = (train.epochs, train.batches(data));
        let mut memory = Memory::start(&self.device);
        let device = match settings.checkpointing {
            Checkpointing::Balanced => self.device.clone().autodiff().gradient_checkpointing(),
            _ => self.device.clone().autodiff(),
        };

        self.device.seed(train.seed);
        let model = M::new(&train.model(data), &device).recomputing(settings.checkpointing.into());
        let model = drawn(model);
        let model = match settings.optimizer.is_in_bf16() {
            // But for norms, which stay in f32.
            true => MixedPrecision::bf16()
                .cast(model)
                .map_err(ReleaseError::from)?,
            false => model,
        };
        let optimizer = Optimizer::new(settings, self.parallel.as_ref(), &model);
        let (mut model, mut optimizer, mut train_loss) = self.load(model, optimizer)?;
        if recording.is_some() && settings.mode == Mode::Plain {
            model = timeline::watched(model);
        }

        let stop_after = self.options.stop_after.map(NonZeroUsize::get);
        let done = self.run.resume_point.unwrap_or(0);
        for epoch in done + 1..=epochs {
            let order = self
                .rng(Purpose::Order, epoch)
                .permutation(data.train.len());
            let mut losses = Losses::default();
            for (index, places) in order.chunks(train.batch_size).enumerate() {
                let iteration = (epoch - 1) * batches + index;
                if stop_after.is_some_and(|last| iteration >= last) {
                    self.show_peak(&mut memory);
                    recording.map(Recording::finish).transpose()?;
                    let ending = Ending::Stopped {
                        epoch: epoch - 1,
                        by_ctrl_c: false,
                    };
                    return Ok((ending, Ok(())));
                }
                // Of several processes, each trains on its share of the batch.
                let places = match self.replicas() {
                    None => places,
                    Some(replicas) => &places[replicas.share(places.len())],
                };
                let (images, labels) = self.batch(&data.train, places, &device)?;
                // The dropout of a resumed run is that of the uninterrupted one.
                let dropout = self.rng(Purpose::Dropout, iteration).next_u64();

                let rate = rate(train.lr, iteration, epochs * batches);
                // From here on, a parameter steps as soon as the backward pass has its gradient.
                model = optimizer.arm(rate, model)?;
                let forward = || cross_entropy(model.forward_seeded(images, dropout), labels);
                let loss = timeline::forward(&model, forward);
                losses.add(loss.clone().without_autodiff(), places.len());
                memory.look();
                let grads = timeline::backward(|| loss.backward());
                let grads = GradientsParams::from_grads(grads, &model);
                drop(loss);
                model = optimizer.step(rate, model, grads)?;
                memory.look();
                if self.run.is_first {
                    progress::batch(epoch, epochs, index + 1, batches);
                }
            }
            train_loss = self.mean_of_all(losses)?;
            ensure!(
                train_loss.is_finite(),
                "the loss is {train_loss} in epoch {epoch}: try a smaller --lr"
            );
            if let Some(parallel) = &self.parallel {
                // What is saved is what all of them have.
                parallel.verify(&model)?;
            }
            if self.run.is_first {
                let (loss, accuracy) = self.validate(&model)?;
                let means = [train_loss, loss, accuracy];
                progress::epoch(epoch, epochs, means, memory.look().in_use);
            }
            self.save(epoch, train_loss, &model, &optimizer)?;
        }
        self.show_peak(&mut memory);
        let recorded = recording.map(Recording::finish).transpose().map(drop);
        if !self.run.is_first {
            return Ok((Ending::OfAnotherRank, recorded));
        }
        // Before the validation, which is not part of the training.
        let peak = memory.look();
        let ending = Ending::Finished(Results {
            validation_accuracy: self.validate(&model)?.1,
            train_loss,
            epochs,
            peak_bytes: peak.in_use,
            peak_reserved_bytes: peak.reserved,
            weights_digest: digest::weights(&model),
        });
        Ok((ending, recorded))
    }

    /// Model, optimizer and loss of the epoch to resume from; of several processes, the model is
    /// that of the first.
    fn load<M: Model>(
        &self,
        mut model: M,
        mut optimizer: Optimizer,
    ) -> Result<(M, Optimizer, f64)> {
        let resume_point = self.run.resume_point;
        let file = |part, epoch| self.run.checkpoints.file(part, epoch);
        let cannot = |epoch| move || format!("cannot load the checkpoint of epoch {epoch}");
        if let Some(epoch) = resume_point {
            let record = ModuleRecord::load(file(MODEL, epoch)).with_context(cannot(epoch))?;
            model = model.try_load_record(record).with_context(cannot(epoch))?;
        }
        if let Some(parallel) = &self.parallel {
            let epoch = resume_point.unwrap_or(0) + 1;
            parallel
                .replicas()
                .meet(&format!("the beginning of epoch {epoch}"))?;
            model = parallel.broadcast(model)?;
        }
        let Some(epoch) = resume_point else {
            return Ok((model, optimizer, 0.0));
        };
        optimizer = optimizer
            .load(self.parallel.as_ref(), &file(OPTIMIZER, epoch))
            .with_context(cannot(epoch))?;
        let state = fs::read(file(STATE, epoch)).with_context(cannot(epoch))?;
        let train_loss = serde_json::from_slice(&state).with_context(cannot(epoch))?;
        Ok((model, optimizer, train_loss))
    }

    /// Writes a checkpoint. Of several processes, the first does, and the others bring their
    /// optimizer states.
    fn save(
        &self,
        epoch: usize,
        train_loss: f64,
        model: &impl Model,
        optimizer: &Optimizer,
    ) -> Result<()> {
        let checkpoints = &self.run.checkpoints;
        let optim_file = checkpoints.file(OPTIMIZER, epoch);
        let save_states = |file: &Path| optimizer.save(self.parallel.as_ref(), file);
        if !self.run.is_first {
            return save_states(&optim_file);
        }
        let saved = checkpoints.save(epoch, |part, file| {
            match part {
                MODEL => model.clone().into_record().save(file)?,
                OPTIMIZER => save_states(file)?,
                _ => fs::write(file, serde_json::to_vec(&train_loss)?)?,
            }
            anyhow::Ok(())
        });
        saved.map_err(
            |error| match error.is::<ReplicaError>() || error.is::<ReleaseError>() {
                true => error,
                false => {
                    CannotWrite::to(optim_file.with_file_name(""), format!("{error:#}")).into()
                }
            },
        )
    }

    /// Loss and accuracy on the validation images.
    fn validate(&self, model: &impl Model) -> Result<(f64, f64)> {
        let model = model.valid();
        let split = &self.run.data.validation;
        let places: Vec<usize> = (0..split.len()).collect();
        let (mut losses, mut correct) = (Losses::default(), 0);
        for places in places.chunks(self.run.settings.train.batch_size) {
            let (images, labels) = self.batch(split, places, &self.device)?;
            let scores = model.forward(images);
            let best = scores.clone().argmax(1).flatten::<1>(0, 1);
            correct += best.equal(labels.clone()).int().sum().into_scalar::<i64>();
            losses.add(cross_entropy(scores, labels), places.len());
        }
        let accuracy = correct as f64 / split.len().max(1) as f64;
        Ok((losses.sum() / split.len().max(1) as f64, accuracy))
    }

    /// `[batch, channels, size, size]` images and `[batch]` labels.
    fn batch(
        &self,
        split: &Split,
        places: &[usize],
        device: &Device,
    ) -> Result<(Tensor<4>, Tensor<1, Int>)> {
        let image = |place: &usize| split.get(*place).context("an image is missing");
        let images: Vec<Image> = places.iter().map(image).collect::<Result<_>>()?;
        let (pixels, shape) = self.run.data.normalization().pixels(&images);
        let dtype = match self.run.settings.optimizer.is_in_bf16() {
            true => DType::BF16,
            false => DType::F32,
        };
        Ok((
            Tensor::from_data(TensorData::new(pixels, shape), (device, dtype)),
            Tensor::from_data(TensorData::new(labels(&images), [images.len()]), device),
        ))
    }

    /// Random numbers for an epoch or an iteration. The dropout of a process differs from that of
    /// the first.
    fn rng(&self, purpose: Purpose, number: usize) -> SeededRng {
        let mut seed = vec![self.run.settings.train.seed, purpose as u64, number as u64];
        if purpose == Purpose::Dropout && !self.run.is_first {
            seed.extend(self.replicas().map(|replicas| replicas.rank() as u64));
        }
        SeededRng::new(&seed)
    }

    /// The mean loss over the images of all processes.
    fn mean_of_all(&self, losses: Losses) -> Result<f64> {
        let own = losses.sum();
        let sum = match self.replicas() {
            None => own,
            Some(replicas) => replicas.numbers("the losses", own)?.iter().sum(),
        };
        Ok(sum / self.run.data.train.len().max(1) as f64)
    }

    fn show_peak(&self, memory: &mut Memory) {
        if let Some(replicas) = self.replicas() {
            progress::peak(replicas.rank(), memory.look().in_use);
        }
    }

    fn replicas(&self) -> Option<&Replicas> {
        self.parallel.as_ref().map(DataParallel::replicas)
    }
}

/// Seeds of different purposes, derived from the seed of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Purpose {
    /// The order of the images in an epoch.
    Order,
    /// The dropout of an iteration.
    Dropout,
}

/// Losses of batches and their images. They are read at the end of an epoch: a GPU would have to be
/// awaited, else.
#[derive(Debug, Default)]
struct Losses(Vec<(Tensor<1>, usize)>);

impl Losses {
    fn add(&mut self, mean: Tensor<1>, images: usize) {
        self.0.push((mean, images));
    }

    /// The sum over images.
    fn sum(self) -> f64 {
        let sum = |(mean, images): (Tensor<1>, usize)| mean.into_scalar::<f64>() * images as f64;
        self.0.into_iter().map(sum).sum()
    }
}

fn cross_entropy(scores: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&scores.device())
        .forward(scores.cast(DType::F32), labels)
}

/// The learning rate of an iteration, counted from 0: a rise to the highest rate, and a cosine from
/// there to zero.
///
/// A function of the iteration, and not one of Burn's schedulers, whose state a resumed run would
/// have to load. The rates are those of Burn's linear and cosine scheduler multiplied.
pub fn rate(highest: f64, iteration: usize, iterations: usize) -> f64 {
    let warm_up = ((iterations as f64 * WARM_UP) as usize).max(1);
    let rise = ((iteration + 1) as f64 / (warm_up + 1) as f64).min(1.0);
    let fall = (1.0 + (PI * iteration as f64 / iterations as f64).cos()) / 2.0;
    highest * rise * fall
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_in_a_tenth_of_the_run_and_falls() {
        let rates: Vec<f64> = (0..100)
            .map(|iteration| rate(1.0, iteration, 100))
            .collect();
        assert!((rates[0] - 1.0 / 11.0).abs() < 1e-12);
        assert!(rates[..11].is_sorted());
        assert!(rates[10..].is_sorted_by(|a, b| a >= b));
        assert!((rates[50] - 0.5).abs() < 1e-12);
        assert!(rates[99] > 0.0 && rates[99] < 0.001);
        assert_eq!(rate(1.0, 0, 1), 0.5);
    }
}

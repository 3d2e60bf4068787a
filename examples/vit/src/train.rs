//! The training: epochs of [steps](Steps), validations and checkpoints.

use crate::digest;
use crate::memory::Memory;
use crate::model::{LeanVit, Model, Vit};
use crate::optimizer::Optimizer;
use crate::settings::{Mode, Operations, Settings};
use crate::step::{Steps, cross_entropy};
use anyhow::{Context, Result, ensure};
use burn::store::ModuleRecord;
use burn::tensor::Tensor;
use burn_lean::timeline::{self, RecordError, Recording};
use burn_lean::{DataParallel, ReleaseError, ReplicaError, Replicas};
use lean_run_folder::CannotWrite;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use vit_common::progress;
use vit_common::results::Results;
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
    /// Its steps.
    pub steps: Steps<'a>,
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
        let (epochs, batches) = (settings.train.epochs, settings.train.batches(data));
        let mut memory = Memory::start(&self.steps.device);
        let (model, optimizer) = self.steps.begin::<M>()?;
        let (mut model, mut optimizer, mut train_loss) = self.load(model, optimizer)?;
        if recording.is_some() && settings.mode == Mode::Plain {
            model = timeline::watched(model);
        }

        let stop_after = self.options.stop_after.map(NonZeroUsize::get);
        let done = self.run.resume_point.unwrap_or(0);
        for epoch in done + 1..=epochs {
            let order = self.steps.order(epoch);
            let mut losses = Losses::default();
            for (index, places) in order.chunks(settings.train.batch_size).enumerate() {
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
                let (stepped, loss) =
                    self.steps
                        .step(model, &mut optimizer, iteration, places, &mut memory)?;
                model = stepped;
                losses.add(loss, places.len());
                if self.run.is_first {
                    progress::batch(epoch, epochs, index + 1, batches);
                }
            }
            train_loss = self.mean_of_all(losses)?;
            ensure!(
                train_loss.is_finite(),
                "the loss is {train_loss} in epoch {epoch}: try a smaller --lr"
            );
            if let Some(parallel) = &self.steps.parallel {
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
        if let Some(parallel) = &self.steps.parallel {
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
            .load(self.steps.parallel.as_ref(), &file(OPTIMIZER, epoch))
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
        let save_states = |file: &Path| optimizer.save(self.steps.parallel.as_ref(), file);
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
            let (images, labels) = self.steps.batch(split, places, &self.steps.device)?;
            let scores = model.forward(images);
            let best = scores.clone().argmax(1).flatten::<1>(0, 1);
            correct += best.equal(labels.clone()).int().sum().into_scalar::<i64>();
            losses.add(cross_entropy(scores, labels), places.len());
        }
        let accuracy = correct as f64 / split.len().max(1) as f64;
        Ok((losses.sum() / split.len().max(1) as f64, accuracy))
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
        self.steps.parallel.as_ref().map(DataParallel::replicas)
    }
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

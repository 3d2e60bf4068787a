//! The training: epochs of [steps](Steps), validations and checkpoints.

use crate::device::Memory;
use crate::model::{LeanVit, Model, Vit, digest};
use crate::optimizer::Optimizer;
use crate::step::{Steps, cross_entropy};
use anyhow::{Context, Result, ensure};
use burn::store::ModuleRecord;
use burn::tensor::Tensor;
use burn_lean::timeline::{self, Recording};
use lean_run_folder::{CannotWrite, note};
use vit_common::config::{Mode, Operations};
use vit_common::memory::mib;
use vit_common::run::{Results, Run};

/// What is saved after an epoch.
pub const PARTS: [&str; 2] = [MODEL, OPTIMIZER];
const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optim.bpk";

/// A training run.
#[derive(Debug)]
pub struct Train<'a> {
    /// Its settings, images and checkpoints.
    pub run: &'a Run,
    /// Its steps.
    pub steps: Steps<'a>,
    /// The batches after which it stops.
    pub stop_after: Option<usize>,
}

impl Train<'_> {
    /// Trains from the checkpoint to resume from, or from random weights. The first process writes
    /// the results, unless the run was stopped.
    ///
    /// # Errors
    ///
    /// The loss is not finite; a checkpoint cannot be read; a file cannot be written; the processes
    /// do not do the same; the training ended before anything was recorded.
    pub fn run(&self, recording: Option<Recording>) -> Result<()> {
        match self.run.settings.operations {
            Operations::Default => self.run_with::<Vit>(recording),
            Operations::Lean => self.run_with::<LeanVit>(recording),
        }
    }

    fn run_with<M: Model>(&self, recording: Option<Recording>) -> Result<()> {
        let Run { settings, data, .. } = self.run;
        let (epochs, batches) = (settings.epochs, settings.batches(data));
        let done = self.run.resume_point.unwrap_or(0);
        let (stop_after, mut stopped) = (self.stop_after.unwrap_or(usize::MAX), false);
        let mut memory = Memory::start(&self.steps.device);
        let (mut model, mut optimizer) = self.load::<M>()?;
        if recording.is_some() && settings.mode == Mode::Plain {
            model = timeline::watched(model);
        }

        'epochs: for epoch in done + 1..=epochs {
            let order = self.steps.order(epoch);
            let mut losses = Vec::new();
            for (index, places) in order.chunks(settings.batch_size).enumerate() {
                let iteration = (epoch - 1) * batches + index;
                if iteration >= stop_after {
                    let last = epoch - 1;
                    note(&format!("stopped: --resume goes on after epoch {last}"));
                    stopped = true;
                    break 'epochs;
                }
                // Of several processes, each trains on its share of the batch.
                let places = match self.steps.replicas() {
                    None => places,
                    Some(replicas) => &places[replicas.share(places.len())],
                };
                let loss;
                (model, loss) =
                    self.steps
                        .step(model, &mut optimizer, iteration, places, &mut memory)?;
                losses.push(loss * places.len() as f64);
            }
            let mut loss = sum(losses);
            if let Some(replicas) = self.steps.replicas() {
                loss = replicas.numbers("the losses", loss)?.iter().sum();
            }
            let loss = loss / data.train.len() as f64;
            ensure!(
                loss.is_finite(),
                "the loss is {loss} in epoch {epoch}: try a smaller --lr"
            );
            if let Some(parallel) = &self.steps.parallel {
                // What is saved is what all of them have.
                parallel.verify(&model)?;
            }
            if self.run.is_first {
                let (validation, accuracy) = self.validate(&model);
                note(&format!(
                    "epoch {epoch:>3}/{epochs}  loss {loss:.4}  validation loss {validation:.4}  \
                     accuracy {:.2} %  peak {}",
                    accuracy * 100.0,
                    mib(memory.look().in_use)
                ));
            }
            self.save(epoch, &model, &optimizer)
                .with_context(|| format!("cannot save the checkpoint of epoch {epoch}"))?;
        }
        // Before the validation, which is not part of the training.
        let peak = memory.look();
        if let Some(replicas) = self.steps.replicas() {
            let (rank, peak) = (replicas.rank(), mib(peak.in_use));
            note(&format!("peak of process {rank}: {peak}"));
        }
        let recorded = recording.map(Recording::finish).transpose();
        if self.run.is_first && !stopped {
            let (validation_loss, validation_accuracy) = self.validate(&model);
            self.run.end(&Results {
                epochs,
                validation_loss,
                validation_accuracy,
                peak_bytes: peak.in_use,
                peak_reserved_bytes: peak.reserved,
                weights_digest: digest(&model),
            })?;
        }
        // Last: a timeline that cannot be written does not cost the results.
        recorded?;
        Ok(())
    }

    /// Model and optimizer of the epoch to resume from, or new ones; of several processes, the model
    /// is that of the first.
    fn load<M: Model>(&self) -> Result<(M, Optimizer)> {
        let (mut model, mut optimizer) = self.steps.begin::<M>()?;
        let point = self.run.resume_point;
        let file = |part, epoch| self.run.checkpoints.file(part, epoch);
        let cannot = |epoch| move || format!("cannot load the checkpoint of epoch {epoch}");
        if let Some(epoch) = point {
            let record = ModuleRecord::load(file(MODEL, epoch)).with_context(cannot(epoch))?;
            model = model.try_load_record(record).with_context(cannot(epoch))?;
        }
        if let Some(parallel) = &self.steps.parallel {
            let begins = format!("the beginning of epoch {}", point.unwrap_or(0) + 1);
            parallel.replicas().meet(&begins)?;
            model = parallel.broadcast(model)?;
        }
        if let Some(epoch) = point {
            optimizer = optimizer
                .load(self.steps.parallel.as_ref(), &file(OPTIMIZER, epoch))
                .with_context(cannot(epoch))?;
        }
        Ok((model, optimizer))
    }

    /// Writes a checkpoint. Of several processes, the first does, and the others bring their
    /// optimizer states.
    fn save(&self, epoch: usize, model: &impl Model, optimizer: &Optimizer) -> Result<()> {
        let parallel = self.steps.parallel.as_ref();
        let checkpoints = &self.run.checkpoints;
        if !self.run.is_first {
            return optimizer.save(parallel, &checkpoints.file(OPTIMIZER, epoch));
        }
        checkpoints.save(epoch, |part, file| match part {
            MODEL => {
                let saved = model.clone().into_record().save(file);
                Ok(saved.map_err(|error| CannotWrite::to(file, error))?)
            }
            _ => optimizer.save(parallel, file),
        })
    }

    /// Loss and accuracy on the validation images.
    fn validate(&self, model: &impl Model) -> (f64, f64) {
        let model = model.valid();
        let split = &self.run.data.validation;
        let places: Vec<usize> = (0..split.len()).collect();
        let (mut losses, mut correct) = (Vec::new(), 0);
        for places in places.chunks(self.run.settings.batch_size) {
            let (images, labels) = self.steps.batch(split, places, &self.steps.device);
            let scores = model.forward(images, None);
            let best = scores.clone().argmax(1).flatten::<1>(0, 1);
            correct += best.equal(labels.clone()).int().sum().into_scalar::<i64>();
            losses.push(cross_entropy(scores, labels) * places.len() as f64);
        }
        let images = split.len().max(1) as f64;
        (sum(losses) / images, correct as f64 / images)
    }
}

/// The sum of the losses of batches. They are read at the end of an epoch: a GPU would have to be
/// awaited, else.
fn sum(losses: Vec<Tensor<1>>) -> f64 {
    Tensor::cat(losses, 0).sum().into_scalar()
}

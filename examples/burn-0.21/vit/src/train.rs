//! A training run with Burn's learner.

use crate::artifacts::Artifacts;
use crate::backend::Job;
use crate::config::{Checkpointing, Regularization, TrainConfig};
use crate::data::{Batch, Dataset, Image, ImageBatcher, Images, TrainBatcher};
use crate::digest;
use crate::memory::{HighWater, Memory};
use crate::metric_log::MetricLog;
use crate::mode::with_optimizer;
use crate::model::Vit;
use crate::panics::Panics;
use crate::progress::EpochLines;
use crate::stopping::{self, CompleteEpochs, Patience};
use crate::terminal::note;
use anyhow::{Context, Result, anyhow};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{LearningRate, Optimizer};
use burn::record::DefaultRecorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, ElementConversion};
use burn::train::metric::store::Split;
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    InferenceStep, Interrupter, Learner, LearningComponentsMarker, LearningResult,
    SupervisedTraining,
};
use burn_gradient_release::{
    GroupOptions, NormClipping, ParamGroup, ReleaseBackend, WithGradientRelease,
};
use burn_gradient_release_data_parallel::{DataParallel, ShareBatcher};
use burn_gradient_release_optim::LeanBackend;
use burn_gradient_release_timeline::{RecordError, Recorder, Recording};
use burn_gradient_release_train::metric::{
    AppliedLearningRateMetric, CountedAccuracyMetric, GradNormMetric, PeakMemoryMetric,
    ReleasedMetric,
};
use burn_gradient_release_train::resume::{AtomicFileRecorder, ResumedDataLoader};
use burn_gradient_release_train::{
    BlockingCheckpointingStrategy, GradientReleaseStrategy, StepMonitor,
};
use std::path::Path;
use std::sync::Arc;
use vit_common::config::WARM_UP;
use vit_common::files::CannotWrite;

pub use vit_common::results::Results;

/// A run that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How it has ended.
    pub ending: Ending,
    /// Whether the memory timeline was written, if one was asked for: it is no part of the
    /// training, which does not fail with it.
    pub memory_timeline: Result<()>,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub enum Ending {
    /// All epochs are done.
    Finished(Results),
    /// The user interrupted the run.
    Interrupted {
        /// The epoch of the checkpoint from which the run can be resumed.
        resume_point: Option<usize>,
        /// Whether it was Ctrl-C.
        by_ctrl_c: bool,
    },
    /// The process is not the first of several, which has the results.
    OfAnotherRank {
        /// Whether it was interrupted by Ctrl-C.
        by_ctrl_c: bool,
    },
}

/// A training run.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct Train<'a> {
    /// The settings.
    pub config: &'a TrainConfig,
    /// The images.
    pub data: &'a Dataset,
    /// The processes that train together, if there are several.
    pub parallel: Option<&'a DataParallel>,
    /// The folder of settings, checkpoints, metrics and results.
    pub artifacts: &'a Artifacts,
    /// Whether to continue from the checkpoint in that folder.
    pub resume: bool,
    /// Stops the run from another thread.
    pub interrupter: Interrupter,
    /// Stops the run after this many iterations, including those before a resume.
    pub stop_after: Option<usize>,
    /// The file for the memory timeline of the third and the fourth batch.
    pub memory_timeline: Option<&'a Path>,
    /// Whether to show Burn's terminal UI, instead of one line for each epoch on stderr.
    pub tui: bool,
}

/// Burn's runner for a model on this backend with this optimizer.
type Training<B, O> =
    SupervisedTraining<LearningComponentsMarker<B, ComposedLrScheduler, Vit<B>, O>>;

impl Job for Train<'_> {
    type Output = Ended;

    fn plain<B: AutodiffBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Ended> {
        let memory = high_water(memory)?;
        let decay = self.config.regularization().weight_decay;
        with_optimizer!(self.config.engine.optimizer, decay, B, |optimizer, _| {
            self.run(device, optimizer, &memory, |training| training)
        })
    }

    /// Gradient release requires two changes: `with_gradient_release` on the optimizer, and a
    /// training strategy. Groups and clipping by the global norm come with it.
    fn release<B: ReleaseBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Ended> {
        let memory = high_water(memory)?;
        let monitor = StepMonitor::new().with_memory(memory.clone());
        let strategy = GradientReleaseStrategy::new(device.clone())
            .with_monitor(monitor.clone())
            .with_recompute(self.config.engine.recompute());
        let Regularization {
            weight_decay,
            no_decay_on_norms,
            clip_grad_norm,
        } = self.config.regularization();
        let kind = self.config.engine.optimizer;
        let parallel = self.parallel.cloned();
        with_optimizer!(kind, weight_decay, B, |optimizer, undecayed| {
            let mut optimizer = optimizer.with_gradient_release();
            if no_decay_on_norms {
                let parameters = ParamGroup::no_decay(&Vit::<B>::new(&self.config.model, &device));
                let options = GroupOptions::new().with_optimizer(&undecayed);
                optimizer = optimizer.with_group(parameters, options);
            }
            if let Some(max_norm) = clip_grad_norm {
                optimizer = optimizer.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
            }
            self.run(device, optimizer, &memory, |training| {
                let training = training
                    .metric_train_numeric(ReleasedMetric::new(&monitor))
                    .metric_train_numeric(AppliedLearningRateMetric::new(&monitor))
                    .metric_train_numeric(PeakMemoryMetric::new(&monitor));
                let training = match clip_grad_norm {
                    None => training,
                    Some(_) => training.metric_train_numeric(GradNormMetric::new(&monitor)),
                };
                training.with_training_strategy(match (parallel, clip_grad_norm) {
                    (None, None) => strategy.into(),
                    (None, Some(_)) => strategy.with_two_passes().into(),
                    (Some(parallel), None) => strategy.with_replicas(parallel).into(),
                    (Some(parallel), Some(_)) => {
                        strategy.with_two_passes().with_replicas(parallel).into()
                    }
                })
            })
        })
    }
}

/// [`backend::run`](crate::backend::run) counts the memory on every backend.
fn high_water(memory: Option<Memory>) -> Result<HighWater> {
    Ok(HighWater::start(
        memory.context("the memory is not counted")?,
    ))
}

impl Train<'_> {
    fn run<B, O>(
        self,
        device: Device<B>,
        optimizer: O,
        memory: &HighWater,
        adapt: impl FnOnce(Training<B, O>) -> Training<B, O>,
    ) -> Result<Ended>
    where
        B: AutodiffBackend,
        O: Optimizer<Vit<B>, B> + 'static,
    {
        let config = self.config;
        let recording = self.record(memory)?;
        let done = self.begin()?;

        B::seed(&device, config.seed);
        let model = Vit::<B>::new(&config.model, &device);
        let model = model.recomputing_blocks(config.engine.checkpointing == Checkpointing::Blocks);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        let model = match self.parallel {
            Some(parallel) => parallel.broadcast(model)?,
            None => model,
        };
        let iterations = config.epochs * self.iterations_per_epoch();
        let scheduler = scheduler(config.learning_rate, iterations)?;
        let learner = Learner::new(model, optimizer, scheduler);

        let valid = self.valid_loader::<B::InnerBackend>(&device);
        let mut training = SupervisedTraining::new(
            self.artifacts.folder(),
            self.train_loader::<B>(&device, done.unwrap_or(0)),
            valid.clone(),
        )
        .metrics((LossMetric::new(), CountedAccuracyMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_metric_logger(MetricLog::new(
            &self.artifacts.metrics(),
            done.unwrap_or(0) + 1,
            self.interrupter.clone(),
        ))
        .with_file_checkpointer(
            AtomicFileRecorder::new(DefaultRecorder::new()).of_run(config.identity()?),
        )
        // A fused backend can lose tensors that another thread reads while this one trains
        // (https://github.com/tracel-ai/burn/issues/4347).
        .with_checkpointing_strategy(BlockingCheckpointingStrategy::new(CompleteEpochs::new(
            self.artifacts.clone(),
            self.interrupter.clone(),
        )))
        .with_interrupter(self.interrupter.clone())
        .num_epochs(self.last_epoch(done)?);
        if let Some(epoch) = done {
            training = training.checkpoint(epoch);
        }
        if config.grads_accumulation > 1 {
            training = training.grads_accumulation(config.grads_accumulation);
        }
        if let Some(epochs) = config.early_stopping {
            training = training.early_stopping(Patience(epochs));
        }
        if !self.tui {
            training = training.renderer(EpochLines::new(memory.clone()));
        }

        let panics = Panics::new(self.artifacts.application_log());
        let training = training.with_application_logger(Some(Box::new(panics.clone())));
        let training = adapt(training);
        let LearningResult { model, renderer } = panics.catch(|| training.launch(learner))?;
        // Restores the terminal.
        drop(renderer);
        let ending = panics.catch(|| self.end(&model, &*valid, memory))??;
        panics.release();
        let finish = |recording: Recording| match recording.finish() {
            Ok(_) => Ok(()),
            Err(RecordError::Save(error)) => {
                Err(CannotWrite(format!("no memory timeline: {error}")).into())
            }
            Err(error) => Err(error).context("no memory timeline"),
        };
        Ok(Ended {
            ending,
            memory_timeline: recording.map_or(Ok(()), finish),
        })
    }

    fn record(&self, memory: &HighWater) -> Result<Option<Recording>> {
        let Some(file) = self.memory_timeline else {
            return Ok(None);
        };
        let TrainConfig { preset, engine, .. } = self.config;
        let recorder = Recorder::new(format!("vit {preset}, {}", engine.mode))
            .with_counter(memory.clone())
            .with_file(file);
        Ok(Some(recorder.start().context("no memory timeline")?))
    }

    /// Prepares the folder; returns the epoch of the checkpoint to continue from.
    fn begin(&self) -> Result<Option<usize>> {
        let is_first = self.artifacts.is_of_first_rank();
        // The first process cleans up before the others look.
        if !is_first {
            self.meet("the folder")?;
        }
        let done = match self.resume {
            true => self.artifacts.resume_point(self.config)?,
            false => None,
        };
        if is_first {
            match (self.resume, done) {
                (false, _) => self.artifacts.start(self.config)?,
                (true, Some(epoch)) => note(&format!("going on after epoch {epoch}")),
                (true, None) => note("no epoch was finished: beginning with the first"),
            }
            self.artifacts.save_settings(self.config)?;
            self.meet("the folder")?;
        }
        self.meet(&format!("the beginning of epoch {}", done.unwrap_or(0) + 1))?;
        Ok(done)
    }

    /// Goes on once all processes are there.
    fn meet(&self, at: &str) -> Result<()> {
        if let Some(parallel) = self.parallel {
            parallel.replicas().meet(at)?;
        }
        Ok(())
    }

    /// The last epoch to train. It is already done if early stopping ended the run there.
    fn last_epoch(&self, done: Option<usize>) -> Result<usize> {
        if let (Some(done), Some(epochs)) = (done, self.config.early_stopping) {
            let mut losses = Vec::new();
            for epoch in 1..=done {
                let loss = self.artifacts.loss(epoch, &Split::Valid)?;
                losses.extend(loss.map(|loss| (epoch, loss)));
            }
            if Patience(epochs).is_exhausted(losses) {
                return Ok(done);
            }
        }
        Ok(self.config.epochs)
    }

    /// Whether no epoch is left to train. An interruption after the last one has no effect.
    fn is_complete(&self, done: Option<usize>) -> Result<bool> {
        Ok(done == Some(self.last_epoch(done)?))
    }

    fn end<B: Backend>(
        &self,
        model: &Vit<B>,
        valid: &dyn DataLoader<B, Batch<B>>,
        memory: &HighWater,
    ) -> Result<Ending> {
        let reason = self.interrupter.get_message();
        let is_first = self.artifacts.is_of_first_rank();
        if let Some(reason) = &reason
            && !stopping::was_asked_for(reason)
            // The others say why where it happened, and the first one in any case.
            && (is_first || !stopping::is_elsewhere(reason))
        {
            return Err(stopping::error(reason));
        }
        if !is_first {
            self.artifacts.save_peak(memory.highest())?;
            // The checkpoints are those of the first one, and complete by now.
            let by_ctrl_c = reason.is_some_and(|reason| stopping::is_ctrl_c(&reason))
                && !self.is_complete(self.artifacts.resume_point(self.config)?)?;
            return Ok(Ending::OfAnotherRank { by_ctrl_c });
        }
        let resume_point = self.artifacts.resume_point(self.config)?;
        if let Some(reason) = reason
            && !self.is_complete(resume_point)?
        {
            return Ok(Ending::Interrupted {
                resume_point,
                by_ctrl_c: stopping::is_ctrl_c(&reason),
            });
        }
        let epochs = resume_point.context("no checkpoint was saved")?;
        let train_loss = self.artifacts.loss(epochs, &Split::Train)?;
        let train_loss = train_loss.context("the loss of the last epoch was not logged")?;
        // Before `accuracy` runs, which is not part of the training.
        let peak = memory.highest();
        let results = Results {
            validation_accuracy: accuracy(model, valid),
            train_loss,
            epochs,
            peak_bytes: peak.in_use,
            peak_reserved_bytes: peak.reserved,
            weights_digest: digest::weights(model),
        };
        self.artifacts.save_results(&results)?;
        Ok(Ending::Finished(results))
    }

    fn train_loader<B: Backend>(
        &self,
        device: &Device<B>,
        done: usize,
    ) -> Arc<dyn DataLoader<B, Batch<B>>> {
        let config = self.config;
        // `ResumedDataLoader` takes one batch of each finished epoch, to advance the shuffling.
        let numbered = done * self.iterations_per_epoch() - done;
        let rank = self
            .parallel
            .map_or(0, |parallel| parallel.replicas().rank());
        let mut batcher =
            TrainBatcher::new(ImageBatcher::new(self.data), config.seed, numbered).of_rank(rank);
        if let Some(last) = self.stop_after {
            batcher = batcher.stop_after(last, self.interrupter.clone());
        }
        let data = Images(self.data.train.clone());
        let loader = match self.parallel {
            None => self.loader(batcher, device).build(data),
            Some(parallel) => {
                let batcher = ShareBatcher::new(batcher, parallel.replicas());
                self.loader(batcher, device).build(data)
            }
        };
        ResumedDataLoader::new(loader, done + 1)
    }

    fn loader<B: Backend>(
        &self,
        batcher: impl Batcher<B, Image, Batch<B>> + 'static,
        device: &Device<B>,
    ) -> DataLoaderBuilder<B, Image, Batch<B>> {
        DataLoaderBuilder::new(batcher)
            .batch_size(self.batch_size())
            .shuffle(self.config.seed)
            .set_device(device.clone())
    }

    fn valid_loader<B: Backend>(&self, device: &Device<B>) -> Arc<dyn DataLoader<B, Batch<B>>> {
        DataLoaderBuilder::new(ImageBatcher::new(self.data))
            .batch_size(self.batch_size())
            .set_device(device.clone())
            .build(Images(self.data.validation.clone()))
    }

    /// Burn makes room for a whole batch, whether there are so many images or not.
    fn batch_size(&self) -> usize {
        let images = self.data.train.len().max(self.data.validation.len());
        self.config.batch_size.min(images.max(1))
    }

    fn iterations_per_epoch(&self) -> usize {
        self.data.train.len().div_ceil(self.config.batch_size)
    }
}

/// The schedule of a training: a rise to the learning rate, and a cosine from there on.
///
/// # Errors
///
/// The rate or the number of iterations is none that Burn's schedulers take.
pub fn scheduler(learning_rate: LearningRate, iterations: usize) -> Result<ComposedLrScheduler> {
    let warm_up = ((iterations as f64 * WARM_UP) as usize).max(1);
    ComposedLrSchedulerConfig::new()
        .cosine(CosineAnnealingLrSchedulerConfig::new(
            learning_rate,
            iterations,
        ))
        .linear(LinearLrSchedulerConfig::new(
            1.0 / (warm_up + 1) as f64,
            1.0,
            warm_up,
        ))
        .init()
        .map_err(|text| anyhow!("the learning rate cannot be scheduled: {text}"))
}

/// Fraction of the images that the model classifies correctly.
///
/// Computed from the final weights rather than read from the log, which has no entry if a resumed
/// run had nothing left to train.
fn accuracy<B: Backend>(model: &Vit<B>, images: &dyn DataLoader<B, Batch<B>>) -> f64 {
    let correct: i64 = images
        .iter()
        .map(|batch| model.step(batch).hits.into_scalar().elem::<i64>())
        .sum();
    correct as f64 / images.num_items().max(1) as f64
}

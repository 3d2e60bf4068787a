//! A training run with Burn's learner.

use crate::backend::Job;
use crate::config::{Checkpointing, Settings};
use crate::data::{Batch, Dataset, Image, ImageBatcher, Images, TrainBatcher};
use crate::digest;
use crate::memory::{HighWater, Memory};
use crate::metrics::{EpochLines, MetricLog, train_loss};
use crate::mode::with_optimizer;
use crate::model::Vit;
use crate::stopping::{self, CompleteEpochs};
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
use lean_run_folder::{CannotWrite, Checkpoints};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vit_common::config::WARM_UP;
use vit_common::progress;

pub use vit_common::results::Results;

/// What Burn's file checkpointer saves after an epoch.
pub const PARTS: [&str; 3] = ["model.mpk", "optim.mpk", "scheduler.mpk"];

/// The folder of the logged metrics, in that of the run.
pub const METRICS: &str = "metrics";

/// The end of a run.
#[derive(Clone, Debug)]
pub enum Ending {
    /// All epochs are done.
    Finished(Results),
    /// The user interrupted the run.
    Stopped {
        /// The epoch after which it can be resumed; 0 is the beginning.
        epoch: usize,
        /// Whether it was Ctrl-C.
        by_ctrl_c: bool,
    },
    /// The process is not the first of several, which has the results.
    OfAnotherRank,
}

/// The end of a run, and whether the memory timeline was written, if one was asked for: it is no
/// part of the training, which does not fail with it.
pub type Ended = (Ending, Result<()>);

/// A training run.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct Train<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The images.
    pub data: &'a Dataset,
    /// The processes that train together, if there are several.
    pub parallel: Option<&'a DataParallel>,
    /// The folder of settings, checkpoints, metrics and results.
    pub folder: &'a Path,
    /// The checkpoints in that folder.
    pub checkpoints: &'a Checkpoints,
    /// What tells the run from others.
    pub identity: &'a str,
    /// The epoch whose checkpoint to continue from.
    pub resume_point: Option<usize>,
    /// Stops the run from another thread.
    pub interrupter: Interrupter,
    /// Stops the run after this many iterations, including those before a resume.
    pub stop_after: Option<usize>,
    /// The file for the memory timeline of the third and the fourth batch.
    pub memory_timeline: Option<&'a Path>,
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
        let Settings { train, engine, .. } = self.settings;
        with_optimizer!(engine.optimizer, train.weight_decay, B, |optimizer, _| {
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
            .with_recompute(self.settings.engine.recompute());
        let Settings { train, engine, .. } = self.settings;
        let clip_grad_norm = self.settings.clip_grad_norm;
        let parallel = self.parallel.cloned();
        with_optimizer!(
            engine.optimizer,
            train.weight_decay,
            B,
            |optimizer, undecayed| {
                let mut optimizer = optimizer.with_gradient_release();
                if self.settings.no_decay_on_norms {
                    let model = Vit::<B>::new(&train.model(self.data), &device);
                    let parameters = ParamGroup::no_decay(&model);
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
            }
        )
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
        let Settings { train, engine, .. } = self.settings;
        let recording = self.record(memory)?;
        let done = self.resume_point.unwrap_or(0);

        B::seed(&device, train.seed);
        let model = Vit::<B>::new(&train.model(self.data), &device);
        let model = model.recomputing_blocks(engine.checkpointing == Checkpointing::Blocks);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        let model = match self.parallel {
            Some(parallel) => parallel.broadcast(model)?,
            None => model,
        };
        let scheduler = scheduler(train.lr, train.iterations(self.data)?)?;
        let learner = Learner::new(model, optimizer, scheduler);

        let valid = self.valid_loader::<B::InnerBackend>(&device);
        let log = self.is_first().then(|| self.metrics());
        let mut training = SupervisedTraining::new(
            self.folder,
            self.train_loader::<B>(&device, done),
            valid.clone(),
        )
        .metrics((LossMetric::new(), CountedAccuracyMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_metric_logger(MetricLog::new(log, done + 1, self.interrupter.clone()))
        // A panic is one of Burn's: it is shown, as anywhere.
        .with_application_logger(None)
        .renderer(EpochLines::new(memory.clone()))
        .with_file_checkpointer(
            AtomicFileRecorder::new(DefaultRecorder::new()).of_run(self.identity),
        )
        // A fused backend can lose tensors that another thread reads while this one trains
        // (https://github.com/tracel-ai/burn/issues/4347).
        .with_checkpointing_strategy(BlockingCheckpointingStrategy::new(CompleteEpochs::new(
            self.checkpoints.clone(),
            self.interrupter.clone(),
        )))
        .with_interrupter(self.interrupter.clone())
        .num_epochs(train.epochs.get());
        if let Some(epoch) = self.resume_point {
            training = training.checkpoint(epoch);
        }
        let accumulation = self.settings.grads_accumulation.get();
        if accumulation > 1 {
            training = training.grads_accumulation(accumulation);
        }
        let LearningResult { model, .. } = adapt(training).launch(learner);
        let ending = self.end(&model, &*valid, memory)?;
        let recorded = match recording.map(Recording::finish) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(RecordError::Save(error))) => {
                Err(CannotWrite(format!("no memory timeline: {error}")).into())
            }
            Some(Err(error)) => Err(error).context("no memory timeline"),
        };
        Ok((ending, recorded))
    }

    fn record(&self, memory: &HighWater) -> Result<Option<Recording>> {
        let Some(file) = self.memory_timeline else {
            return Ok(None);
        };
        let Settings { train, engine, .. } = self.settings;
        let recorder = Recorder::new(format!("vit {}, {}", train.preset, engine.mode))
            .with_counter(memory.clone())
            .with_file(file);
        Ok(Some(recorder.start().context("no memory timeline")?))
    }

    /// How the run has ended.
    fn end<B: Backend>(
        &self,
        model: &Vit<B>,
        valid: &dyn DataLoader<B, Batch<B>>,
        memory: &HighWater,
    ) -> Result<Ending> {
        let reason = self.interrupter.get_message();
        if let Some(reason) = &reason
            && !stopping::was_asked_for(reason)
            // The others say why where it happened, and the first one in any case.
            && (self.is_first() || !stopping::is_elsewhere(reason))
        {
            return Err(stopping::error(reason));
        }
        // Before `accuracy` runs, which is not part of the training.
        let peak = memory.highest();
        if let Some(parallel) = self.parallel {
            progress::peak(parallel.replicas().rank(), peak.in_use);
        }
        let epochs = self.settings.train.epochs.get();
        let done = match reason {
            None => epochs,
            // The checkpoints are those of the first process, and complete by now.
            Some(_) => self.checkpoints.resume_point()?.unwrap_or(0),
        };
        match reason {
            // An interruption after the last epoch has no effect.
            Some(reason) if done < epochs => Ok(Ending::Stopped {
                epoch: done,
                by_ctrl_c: stopping::is_ctrl_c(&reason),
            }),
            _ if !self.is_first() => Ok(Ending::OfAnotherRank),
            _ => Ok(Ending::Finished(Results {
                validation_accuracy: accuracy(model, valid),
                train_loss: train_loss(&self.metrics(), epochs)?,
                epochs,
                peak_bytes: peak.in_use,
                peak_reserved_bytes: peak.reserved,
                weights_digest: digest::weights(model),
            })),
        }
    }

    /// Whether this is the one process that shows and writes what is the same in all.
    fn is_first(&self) -> bool {
        self.parallel
            .is_none_or(|parallel| parallel.replicas().is_first())
    }

    fn metrics(&self) -> PathBuf {
        self.folder.join(METRICS)
    }

    fn train_loader<B: Backend>(
        &self,
        device: &Device<B>,
        done: usize,
    ) -> Arc<dyn DataLoader<B, Batch<B>>> {
        // `ResumedDataLoader` takes one batch of each finished epoch, to advance the shuffling.
        let numbered = done * self.settings.train.batches(self.data) - done;
        let rank = self
            .parallel
            .map_or(0, |parallel| parallel.replicas().rank());
        let seed = self.settings.train.seed;
        let mut batcher =
            TrainBatcher::new(ImageBatcher::new(self.data), seed, numbered).of_rank(rank);
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
            .shuffle(self.settings.train.seed)
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
        self.settings.train.batch_size.get().min(images.max(1))
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

//! A training run with Burn's learner.

use crate::metrics::{EpochLines, MetricLog, train_loss};
use crate::optimizer::with_optimizer;
use anyhow::{Context, Result};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::module::Module;
use burn::optim::Optimizer;
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
use burn_gradient_release_data_parallel::{DataParallel, Replicas, ShareBatcher};
use burn_gradient_release_optim::LeanBackend;
use burn_gradient_release_timeline::{Recorder, Recording};
use burn_gradient_release_train::metric::{
    AppliedLearningRateMetric, CountedAccuracyMetric, GradNormMetric, PeakMemoryMetric,
    ReleasedMetric,
};
use burn_gradient_release_train::resume::{AtomicFileRecorder, ResumedDataLoader};
use burn_gradient_release_train::{
    BlockingCheckpointingStrategy, GradientReleaseStrategy, StepMonitor,
};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use vit_0_21::config::{Checkpointing, Settings};
use vit_0_21::data::{Batch, Image, ImageBatcher, Images, TrainBatcher};
use vit_0_21::digest;
use vit_0_21::memory::{HighWater, Memory};
use vit_0_21::model::Vit;
use vit_0_21::schedule::scheduler;
use vit_0_21::stopping::{self, CompleteEpochs};
use vit_common::progress;
use vit_common::results::Results;
use vit_common::run::{Ending, Options, Run};

/// What Burn's file checkpointer saves after an epoch.
pub(crate) const PARTS: [&str; 3] = ["model.mpk", "optim.mpk", "scheduler.mpk"];

/// The folder of the logged metrics, in that of the run.
pub(crate) const METRICS: &str = "metrics";

/// A training run.
pub(crate) struct Train<'a> {
    /// Its settings, images, folder and checkpoints.
    pub(crate) run: &'a Run<Settings>,
    /// When it stops, and what it records.
    pub(crate) options: &'a Options<Settings>,
    /// The processes that train together, if there are several.
    pub(crate) parallel: Option<DataParallel>,
    /// Stops the run from another thread.
    pub(crate) interrupter: Interrupter,
}

/// How a run has ended, and what has become of the recording of its memory.
pub(crate) type Ended = (Ending, Result<()>);

/// Burn's runner for a model on this backend with this optimizer.
type Training<B, O> =
    SupervisedTraining<LearningComponentsMarker<B, ComposedLrScheduler, Vit<B>, O>>;

impl Train<'_> {
    /// Trains with plain Burn.
    pub(crate) fn plain<B: AutodiffBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Memory,
    ) -> Result<Ended> {
        let memory = HighWater::start(memory);
        let Settings { train, engine, .. } = &self.run.settings;
        with_optimizer!(engine.optimizer, train.weight_decay, B, |optimizer, _| {
            self.run(device, optimizer, &memory, |training| training)
        })
    }

    /// Gradient release requires two changes: `with_gradient_release` on the optimizer, and a
    /// training strategy. Groups and clipping by the global norm come with it.
    pub(crate) fn release<B: ReleaseBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Memory,
    ) -> Result<Ended> {
        let memory = HighWater::start(memory);
        let monitor = StepMonitor::new().with_memory(memory.clone());
        let settings = &self.run.settings;
        let Settings { train, engine, .. } = settings;
        let clip_grad_norm = settings.clip_grad_norm;
        let parallel = self.parallel.clone();
        let strategy = GradientReleaseStrategy::new(device.clone())
            .with_monitor(monitor.clone())
            .with_recompute(engine.recompute());
        with_optimizer!(
            engine.optimizer,
            train.weight_decay,
            B,
            |optimizer, undecayed| {
                let mut optimizer = optimizer.with_gradient_release();
                if settings.no_decay_on_norms {
                    let model = Vit::<B>::new(&train.model(&self.run.data), &device);
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
        let Settings { train, engine, .. } = &self.run.settings;
        let recording = self.record(memory)?;
        let done = self.run.resume_point.unwrap_or(0);

        B::seed(&device, train.seed);
        let model = Vit::<B>::new(&train.model(&self.run.data), &device);
        let model = model.recomputing_blocks(engine.checkpointing == Checkpointing::Blocks);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        let model = match &self.parallel {
            Some(parallel) => parallel.broadcast(model)?,
            None => model,
        };
        let scheduler = scheduler(train.lr, train.iterations(&self.run.data))?;
        let learner = Learner::new(model, optimizer, scheduler);

        let valid = self.valid_loader::<B::InnerBackend>(&device);
        let log = self.run.is_first.then(|| self.metrics());
        let mut training = SupervisedTraining::new(
            self.run.folder.path(),
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
            AtomicFileRecorder::new(DefaultRecorder::new()).of_run(&self.run.identity),
        )
        // A fused backend can lose tensors that another thread reads while this one trains
        // (https://github.com/tracel-ai/burn/issues/4347).
        .with_checkpointing_strategy(BlockingCheckpointingStrategy::new(CompleteEpochs::new(
            self.run.checkpoints.clone(),
            self.interrupter.clone(),
        )))
        .with_interrupter(self.interrupter.clone())
        .num_epochs(train.epochs);
        if let Some(epoch) = self.run.resume_point {
            training = training.checkpoint(epoch);
        }
        let accumulation = self.run.settings.grads_accumulation.get();
        if accumulation > 1 {
            training = training.grads_accumulation(accumulation);
        }
        let LearningResult { model, .. } = adapt(training).launch(learner);
        let ending = self.end(&model, &*valid, memory);
        let recorded = recording.map(Recording::finish).transpose().map(drop);
        Ok((ending?, recorded.context("no memory timeline")))
    }

    fn record(&self, memory: &HighWater) -> Result<Option<Recording>> {
        // Every process would write the same file.
        let file = self.options.memory_timeline.as_ref();
        let record = |file| {
            let Settings { train, engine, .. } = &self.run.settings;
            Recorder::new(format!("vit {}, {}", train.preset, engine.mode))
                .with_counter(memory.clone())
                .with_file(file)
                .start()
        };
        let recording = file.filter(|_| self.run.is_first).map(record);
        recording.transpose().context("no memory timeline")
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
            && (self.run.is_first || !stopping::is_elsewhere(reason))
        {
            return Err(stopping::error(reason));
        }
        // Before `accuracy` runs, which is not part of the training.
        let peak = memory.highest();
        if let Some(replicas) = self.replicas() {
            progress::peak(replicas.rank(), peak.in_use);
        }
        let epochs = self.run.settings.train.epochs;
        let done = match reason {
            None => epochs,
            // The checkpoints are those of the first process, and complete by now.
            Some(_) => self.run.checkpoints.resume_point()?.unwrap_or(0),
        };
        match reason {
            // An interruption after the last epoch has no effect.
            Some(reason) if done < epochs => Ok(Ending::Stopped {
                epoch: done,
                by_ctrl_c: stopping::is_ctrl_c(&reason),
            }),
            _ if !self.run.is_first => Ok(Ending::OfAnotherRank),
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

    fn replicas(&self) -> Option<&Replicas> {
        self.parallel.as_ref().map(DataParallel::replicas)
    }

    fn metrics(&self) -> PathBuf {
        self.run.folder.path().join(METRICS)
    }

    fn train_loader<B: Backend>(
        &self,
        device: &Device<B>,
        done: usize,
    ) -> Arc<dyn DataLoader<B, Batch<B>>> {
        let Run { settings, data, .. } = self.run;
        // `ResumedDataLoader` takes one batch of each finished epoch, to advance the shuffling.
        let numbered = done * settings.train.batches(data) - done;
        let rank = self.replicas().map_or(0, Replicas::rank);
        let mut batcher =
            TrainBatcher::new(ImageBatcher::new(data), settings.train.seed, numbered).of_rank(rank);
        if let Some(last) = self.options.stop_after.map(NonZeroUsize::get) {
            batcher = batcher.stop_after(last, self.interrupter.clone());
        }
        let images = Images(data.train.clone());
        let loader = match self.replicas() {
            None => self.loader(batcher, device).build(images),
            Some(replicas) => {
                let batcher = ShareBatcher::new(batcher, replicas);
                self.loader(batcher, device).build(images)
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
            .shuffle(self.run.settings.train.seed)
            .set_device(device.clone())
    }

    fn valid_loader<B: Backend>(&self, device: &Device<B>) -> Arc<dyn DataLoader<B, Batch<B>>> {
        DataLoaderBuilder::new(ImageBatcher::new(&self.run.data))
            .batch_size(self.batch_size())
            .set_device(device.clone())
            .build(Images(self.run.data.validation.clone()))
    }

    /// Burn makes room for a whole batch, whether there are so many images or not.
    fn batch_size(&self) -> usize {
        let Run { settings, data, .. } = self.run;
        let images = data.train.len().max(data.validation.len());
        settings.train.batch_size.min(images.max(1))
    }
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

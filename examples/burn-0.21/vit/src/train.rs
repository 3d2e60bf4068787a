//! A training run with Burn's learner.

use crate::progress::EpochLines;
use anyhow::{Context, Result, ensure};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::module::Module;
use burn::nn::Embedding;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamWConfig, Optimizer, SimpleOptimizer};
use burn::record::DefaultRecorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Device, ElementConversion};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    InferenceStep, Interrupter, Learner, LearningComponentsMarker, LearningResult,
    SupervisedTraining,
};
use burn_gradient_release::{Recompute, ReleaseBackend, WithGradientRelease};
use burn_gradient_release_data_parallel::{DataParallel, Replicas, ShareBatcher};
use burn_gradient_release_optim::{EightBitMoments, InOnePass, LeanBackend};
use burn_gradient_release_timeline::{RecordSteps, Recorder, Recording};
use burn_gradient_release_train::metric::{CountedAccuracyMetric, ReleasedMetric};
use burn_gradient_release_train::resume::{AtomicFileRecorder, ResumedDataLoader};
use burn_gradient_release_train::{
    BlockingCheckpointingStrategy, GradientReleaseStrategy, StepMonitor, log_apart,
};
use lean_run_folder::{CannotWrite, Run, note};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use vit_0_21::data::{Batch, ImageBatcher, Images, TrainBatcher};
use vit_0_21::memory::{HighWater, Memory};
use vit_0_21::model::{Vit, digest};
use vit_0_21::schedule::scheduler;
use vit_inputs::{Checkpointing, Dataset, Image, OptimizerKind, Settings, WEIGHT_DECAY, mib};

/// What Burn's file checkpointer saves after an epoch.
pub(crate) const PARTS: [&str; 3] = ["model.mpk", "optim.mpk", "scheduler.mpk"];

pub(crate) struct Train<'a> {
    /// Its settings, folder and checkpoints.
    pub(crate) run: &'a Run<Settings>,
    /// Its images.
    pub(crate) data: &'a Dataset,
    /// The file of its memory timeline.
    pub(crate) memory_timeline: Option<&'a Path>,
    /// The processes that train together, if there are several.
    pub(crate) parallel: Option<DataParallel>,
}

/// Burn's runner for a model on this backend with this optimizer.
type Training<B, O> =
    SupervisedTraining<LearningComponentsMarker<B, ComposedLrScheduler, Vit<B>, O>>;

/// Burn's AdamW; a memory timeline knows of its steps.
fn adamw<B: AutodiffBackend>()
-> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Vit<B>, B> {
    config().init::<B, Vit<B>>().recorded()
}

/// The same with moments in 8 bits: a quarter of its state.
fn adamw_8bit<B: AutodiffBackend<InnerBackend: LeanBackend>>()
-> OptimizerAdaptor<impl SimpleOptimizer<B::InnerBackend> + 'static, Vit<B>, B> {
    // A vision transformer has no embedding that would keep its moments in 32 bits.
    let embeddings = Vec::<Embedding<B>>::new();
    let optimizer = config().in_one_pass().with_8_bit_moments(&embeddings);
    OptimizerAdaptor::from(optimizer).recorded()
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32)
}

impl Train<'_> {
    pub(crate) fn plain<B: AutodiffBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Memory,
    ) -> Result<()> {
        match self.run.settings.optimizer {
            OptimizerKind::AdamW8bit => self.run(device, memory, adamw_8bit::<B>(), |it| it),
            _ => self.run(device, memory, adamw::<B>(), |it| it),
        }
    }

    pub(crate) fn release<B: ReleaseBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Memory,
    ) -> Result<()> {
        match self.run.settings.optimizer {
            OptimizerKind::AdamW8bit => self.releasing(device, memory, adamw_8bit::<B>()),
            _ => self.releasing(device, memory, adamw::<B>()),
        }
    }

    /// Gradient release requires two changes: `with_gradient_release` on the optimizer, and a
    /// training strategy.
    fn releasing<B: ReleaseBackend, O: SimpleOptimizer<B::InnerBackend> + 'static>(
        self,
        device: Device<B>,
        memory: Memory,
        optimizer: OptimizerAdaptor<O, Vit<B>, B>,
    ) -> Result<()> {
        let monitor = StepMonitor::new();
        let strategy = GradientReleaseStrategy::new(device.clone())
            .with_monitor(monitor.clone())
            .with_recompute(match self.run.settings.checkpointing {
                Checkpointing::Automatic => Recompute::Automatic,
                _ => Recompute::None,
            });
        let parallel = self.parallel.clone();
        let optimizer = optimizer.with_gradient_release();
        self.run(device, memory, optimizer, |training| {
            training
                .metric_train_numeric(ReleasedMetric::new(&monitor))
                .with_training_strategy(match parallel {
                    None => strategy.into(),
                    Some(parallel) => strategy.with_replicas(parallel).into(),
                })
        })
    }

    fn run<B: AutodiffBackend, O: Optimizer<Vit<B>, B> + 'static>(
        self,
        device: Device<B>,
        memory: Memory,
        optimizer: O,
        adapt: impl FnOnce(Training<B, O>) -> Training<B, O>,
    ) -> Result<()> {
        let (settings, data) = (&self.run.settings, self.data);
        let memory = HighWater::start(memory);
        let record = |file| {
            Recorder::new(format!("vit {}, {}", settings.preset, settings.mode))
                .with_counter(memory.clone())
                .with_file(file)
                .start()
        };
        let recording = self.memory_timeline.map(record).transpose();
        let recording = recording.context("no memory timeline")?;

        B::seed(&device, settings.seed);
        let model = Vit::<B>::new(&settings.model(data), &device)
            .recomputing_blocks(settings.checkpointing == Checkpointing::Blocks);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        let model = match &self.parallel {
            Some(parallel) => parallel.broadcast(model)?,
            None => model,
        };
        let scheduler = scheduler(settings.lr, settings.epochs * settings.batches(data))?;

        let folder = self.run.folder.path();
        let valid = self
            .loader(ImageBatcher::new(data), &device)
            .build(Images(data.validation.clone()));
        let interrupter = Interrupter::new();
        let mut training =
            SupervisedTraining::new(folder, self.train_loader::<B>(&device), valid.clone())
                .metrics((LossMetric::new(), CountedAccuracyMetric::new()))
                .metric_train_numeric(LearningRateMetric::new())
                .with_file_checkpointer(
                    AtomicFileRecorder::new(DefaultRecorder::new()).of_run(&self.run.identity),
                )
                // A fused backend can lose tensors that another thread reads while this one trains
                // (https://github.com/tracel-ai/burn/issues/4347).
                .with_checkpointing_strategy(BlockingCheckpointingStrategy::new(
                    KeepLastNCheckpoints::new(2),
                ))
                .with_interrupter(interrupter.clone())
                .num_epochs(settings.epochs);
        if let Some(replicas) = self.replicas() {
            training = log_apart(training, folder, replicas);
        }
        training = training.renderer(EpochLines::default());
        if let Some(epoch) = self.run.resume_point {
            training = training.checkpoint(epoch);
        }
        let learner = Learner::new(model, optimizer, scheduler);
        let LearningResult { model, .. } = adapt(training).launch(learner);

        // Before the validation, which is not part of the training.
        let peak = memory.highest();
        if let Some(replicas) = self.replicas() {
            let (rank, peak) = (replicas.rank(), mib(peak.in_use));
            note(&format!("peak of process {rank}: {peak}"));
        }
        let recorded = recording.map(Recording::finish).transpose();
        // Only checkpoints that cannot be written interrupt this program.
        if let Some(reason) = interrupter.get_message() {
            return Err(CannotWrite(reason).into());
        }
        if self.run.is_first {
            let (validation_loss, validation_accuracy) = validate(&model, &*valid);
            ensure!(
                validation_loss.is_finite(),
                "the loss is {validation_loss}: try a smaller --lr"
            );
            self.run.folder.save_results(&json!({
                "epochs": settings.epochs,
                "validation_loss": validation_loss,
                "validation_accuracy": validation_accuracy,
                "peak_bytes": peak.in_use,
                "peak_reserved_bytes": peak.reserved,
                "weights_digest": digest(&model),
            }))?;
            note(&format!(
                "validation accuracy {:.2} % after {} epochs, peak memory {}",
                validation_accuracy * 100.0,
                settings.epochs,
                mib(peak.in_use)
            ));
        }
        // Last: a timeline that cannot be written does not cost the results.
        recorded.context("no memory timeline")?;
        Ok(())
    }

    fn replicas(&self) -> Option<&Replicas> {
        self.parallel.as_ref().map(DataParallel::replicas)
    }

    /// The training images, as an uninterrupted run sees them.
    fn train_loader<B: Backend>(&self, device: &Device<B>) -> Arc<dyn DataLoader<B, Batch<B>>> {
        let (settings, data) = (&self.run.settings, self.data);
        let done = self.run.resume_point.unwrap_or(0);
        // `ResumedDataLoader` takes one batch of each finished epoch, to advance the shuffling.
        let numbered = done * settings.batches(data) - done;
        let rank = self.replicas().map_or(0, Replicas::rank);
        let batcher = TrainBatcher::new(ImageBatcher::new(data), settings.seed, numbered, rank);
        let images = Images(data.train.clone());
        let loader = match self.replicas() {
            None => self.loader(batcher, device).shuffle(settings.seed),
            Some(replicas) => {
                let batcher = ShareBatcher::new(batcher, replicas);
                self.loader(batcher, device).shuffle(settings.seed)
            }
        };
        ResumedDataLoader::new(loader.build(images), done + 1)
    }

    fn loader<B: Backend>(
        &self,
        batcher: impl Batcher<B, Image, Batch<B>> + 'static,
        device: &Device<B>,
    ) -> DataLoaderBuilder<B, Image, Batch<B>> {
        DataLoaderBuilder::new(batcher)
            .batch_size(self.run.settings.batch_size)
            .set_device(device.clone())
    }
}

/// Mean loss and accuracy on these images.
fn validate<B: Backend>(model: &Vit<B>, images: &dyn DataLoader<B, Batch<B>>) -> (f64, f64) {
    let (mut loss, mut hits) = (0.0, 0);
    for batch in images.iter() {
        let counts = model.step(batch);
        loss += counts.loss.into_scalar().elem::<f64>() * counts.items as f64;
        hits += counts.hits.into_scalar().elem::<i64>();
    }
    let images = images.num_items().max(1) as f64;
    (loss / images, hits as f64 / images)
}

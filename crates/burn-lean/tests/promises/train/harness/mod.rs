//! One training with burn-train's `Learner`, stock or released: the same model, batches and
//! optimizer.

mod model;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    InferenceStep, Interrupter, Learner, MetricEarlyStoppingStrategy, RegressionOutput,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_lean::train::metric::{
    AppliedLearningRateMetric, GradNormMetric, PeakMemoryMetric, ReleasedMetric,
};
use burn_lean::train::resume::{
    ResumedDataLoader, checked_checkpointers, checked_checkpointers_of_run,
};
use burn_lean::train::{GradientReleaseStrategy, PeakMemory, StepMonitor, release_learner};
use burn_lean::{DataParallel, LossScaler, Replicas};
use tempfile::TempDir;

use crate::harness::prelude::*;

pub(super) use self::model::*;

/// Loads these batches, or those of a replica.
fn loader(
    batches: usize,
    shuffle: Option<u64>,
    replicas: Option<&Replicas>,
    unreadable: Option<usize>,
) -> Arc<dyn DataLoader<Batch>> {
    let is_own = |item: &usize| {
        let batch = (item - 1) / 2;
        replicas.is_none_or(|replicas| batch % replicas.size() == replicas.rank())
    };
    let items = (1..=2 * batches).filter(is_own).collect();
    let builder = DataLoaderBuilder::new(Batches).batch_size(2);
    match shuffle {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    }
    .build(Items(InMemDataset::new(items), unreadable))
}

/// Items, of which one cannot be read.
struct Items(InMemDataset<usize>, Option<usize>);

impl Dataset<usize> for Items {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        match self.0.get(index)? {
            item if self.1 == Some(item) => {
                let error = std::io::Error::other(format!("no item {item}"));
                Err(DatasetError::new(error))
            }
            item => Ok(item),
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Who trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Burn alone: the reference.
    Stock,
    /// Burn's strategy with the learner for gradient release.
    StockWithOurs,
    Released,
}

#[derive(Clone)]
pub(super) struct Training {
    pub(super) model: Net,
    pub(super) device: Device,
    pub(super) optim: fn() -> ModuleOptimizer,
    pub(super) scheduler: fn() -> ModuleLrScheduler,
    pub(super) epochs: usize,
    pub(super) shuffle: Option<u64>,
    pub(super) accumulation: Option<usize>,
    /// Saves checkpoints.
    pub(super) saves: bool,
    /// Saves them with checksums, as of a run with these settings.
    pub(super) of_run: Option<&'static str>,
    /// Resumes from this one.
    pub(super) checkpoint: Option<usize>,
    pub(super) early_stopping: Option<MetricEarlyStoppingStrategy>,
    pub(super) interrupter: Interrupter,
    /// The settings of the released training's optimizer.
    pub(super) settings: Settings,
    pub(super) has_two_passes: bool,
    /// Batches in an epoch, of all replicas.
    pub(super) batches: usize,
    /// An item of training that cannot be read.
    pub(super) unreadable: Option<usize>,
    /// The replicas that train, and the folder of their checkpoints.
    pub(super) replicas: Option<(DataParallel, PathBuf)>,
    pub(super) directory: Directory,
}

pub(super) type Settings = Arc<dyn Fn(ReleaseOptimizer) -> ReleaseOptimizer>;

/// A peak of one MiB for each reset so far.
#[derive(Default)]
struct Resets(AtomicU64);

impl PeakMemory for Resets {
    fn reset_peak(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn peak_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) << 20
    }
}

/// The folder given to `SupervisedTraining::new`.
#[derive(Clone)]
pub(super) struct Directory {
    path: PathBuf,
    _temporary: Option<Arc<TempDir>>,
}

impl Directory {
    pub(super) fn temporary() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self {
            path: temporary.path().to_path_buf(),
            _temporary: Some(Arc::new(temporary)),
        }
    }

    pub(super) fn at(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            _temporary: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn checkpoint(&self, file: &str) -> PathBuf {
        self.path.join("checkpoint").join(file)
    }

    /// The names of the checkpoints' files, sorted.
    pub(super) fn checkpoints(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path.join("checkpoint")).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    /// What a metric has logged of the training in an epoch.
    pub(super) fn logged(&self, epoch: usize, metric: &str) -> Vec<String> {
        let metric = metric.replace(' ', "_");
        let file = self.path.join(format!("train/epoch-{epoch}/{metric}.log"));
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.lines().map(str::to_string).collect()
    }
}

/// What a training did.
#[derive(Debug)]
pub(super) struct Run {
    /// Of every step, also those of validation.
    pub(super) losses: Vec<u32>,
    pub(super) last: Bits,
    pub(super) interrupted: Option<String>,
}

pub(super) fn rates() -> ModuleLrScheduler {
    CosineAnnealingLrSchedulerConfig::new(0.05, 5)
        .with_min_lr(0.001)
        .init()
        .unwrap()
}

impl Training {
    pub(super) fn new(optim: fn() -> ModuleOptimizer) -> Self {
        Self::on(&flex(), optim)
    }

    /// AdamW with a model whose code does this.
    pub(super) fn of_user(user: User) -> Self {
        let mut training = Self::new(adamw);
        training.model.user = user;
        training
    }

    pub(super) fn on(device: &Device, optim: fn() -> ModuleOptimizer) -> Self {
        Self {
            model: Net::new(device),
            device: device.clone(),
            optim,
            scheduler: rates,
            epochs: 3,
            shuffle: None,
            accumulation: None,
            saves: false,
            of_run: None,
            checkpoint: None,
            early_stopping: None,
            interrupter: Interrupter::new(),
            settings: Arc::new(|optim| optim),
            has_two_passes: false,
            batches: BATCHES,
            unreadable: None,
            replicas: None,
            directory: Directory::temporary(),
        }
    }

    pub(super) fn run(&self, mode: Mode) -> Run {
        let model = self.model.clone();
        // What runs of this model did before is not this run's.
        let losses: Arc<Mutex<Vec<u32>>> = Arc::default();
        // Burn's clones share their running statistics.
        let batch_norm = BatchNormConfig::new(WIDTH).init(&self.model.head.weight.device());
        let model = Net {
            batch_norm: batch_norm.load_record(model.batch_norm.into_record()),
            user: User {
                losses: losses.clone(),
                ..model.user.clone()
            },
            ..model
        };
        let model = match &self.replicas {
            Some((parallel, _)) => parallel.broadcast(model).unwrap(),
            None => model,
        };
        let learner = match mode {
            Mode::Stock => Learner::new(model, (self.optim)(), (self.scheduler)()),
            _ => {
                let optim = (self.settings)((self.optim)().with_gradient_release());
                release_learner(model, optim, (self.scheduler)())
            }
        };
        let result = self.supervised(mode).launch(learner);
        let run = Run {
            losses: std::mem::take(&mut losses.lock().unwrap()),
            last: bits(&result.model),
            interrupted: result.interrupted.and_then(|stop| stop.reason),
        };
        if let Some(error) = result.error {
            panic!("{error}");
        }
        run
    }

    pub(super) fn supervised(&self, mode: Mode) -> SupervisedTraining<Net> {
        let monitor = StepMonitor::new().with_memory(Resets::default());
        let parallel = self.replicas.as_ref().map(|(parallel, _)| parallel);
        let replicas = parallel.map(DataParallel::replicas);
        let mut train = loader(self.batches, self.shuffle, replicas, self.unreadable);
        if let Some(epoch) = self.checkpoint {
            train = ResumedDataLoader::new(train, epoch + 1);
        }
        let valid = loader(2, None, None, None);
        let mut training = SupervisedTraining::new(self.directory.path(), train, valid)
            .with_application_logger(None)
            .with_interrupter(self.interrupter.clone())
            .metrics((LossMetric::new(), LearningRateMetric::new()))
            .metric_train_numeric(ReleasedMetric::new(&monitor))
            .metric_train_numeric(AppliedLearningRateMetric::new(&monitor))
            .metric_train_numeric(GradNormMetric::new(&monitor))
            .metric_train_numeric(PeakMemoryMetric::new(&monitor))
            .num_epochs(self.epochs);
        if let Some(window) = self.accumulation {
            training = training.grads_accumulation(window);
        }
        if self.saves {
            let keep = KeepLastNCheckpoints::new(self.epochs);
            training = match self.of_run {
                None if let Some((_, folder)) = &self.replicas => {
                    checked_checkpointers(training, folder)
                }
                None => training.with_default_checkpointers(),
                Some(run) => checked_checkpointers_of_run(training, self.directory.path(), run),
            };
            training = training.with_checkpointing_strategy(keep);
        }
        if let Some(epoch) = self.checkpoint {
            training = training.checkpoint(epoch);
        }
        if let Some(strategy) = self.early_stopping.clone() {
            training = training.early_stopping(strategy);
        }
        match mode {
            Mode::Released => {
                let strategy = GradientReleaseStrategy::new(self.device.clone());
                let mut strategy = strategy.with_monitor(monitor);
                if let Some(parallel) = parallel {
                    strategy = strategy.with_replicas(parallel.clone());
                }
                training.with_training_strategy(match self.has_two_passes {
                    true => strategy.with_two_passes().into(),
                    false => strategy.into(),
                })
            }
            _ => {
                let strategy = burn::train::ExecutionStrategy::single(self.device.clone());
                training.with_training_strategy(strategy.into())
            }
        }
    }

    /// Trains both ways, and compares every loss and the last weights.
    #[track_caller]
    pub(super) fn assert_same(&self, what: &str) -> Run {
        let [expected, found] = [Mode::Stock, Mode::Released].map(|mode| {
            let directory = Directory::temporary();
            let training = Self {
                directory,
                interrupter: Interrupter::new(),
                ..self.clone()
            };
            training.run(mode)
        });
        let mut numbers = expected.last.iter().flat_map(|(_, bits)| bits);
        assert!(numbers.all(|bits| f32::from_bits(*bits).is_finite()));
        let pairs = expected.last.iter().zip(bits(&self.model));
        let changed = pairs.filter(|(after, before)| *after != before).count();
        assert!(changed >= 10, "{what}: {changed} parameters have changed");
        found.assert_same(&expected, what);
        found
    }

    /// The text with which a released training is refused.
    #[track_caller]
    pub(super) fn refused(&self) -> String {
        match panic_of(|| self.run(Mode::Released)) {
            Ok(_) => panic!("{:?} is to be refused", self.model.user),
            Err(text) => text,
        }
    }
}

impl Run {
    #[track_caller]
    pub(super) fn assert_same(&self, expected: &Self, what: &str) {
        assert_eq!(self.losses.len(), expected.losses.len(), "steps of {what}");
        let differs = |(found, expected)| found != expected;
        let first = self.losses.iter().zip(&expected.losses).position(differs);
        assert_eq!(first, None, "the first loss of {what} that is another");
        assert_bits(&self.last, &expected.last, what);
    }
}

/// Stops after an epoch whose validation loss has not risen: it gets worse sooner or later.
pub(super) fn stopping_once_worse() -> MetricEarlyStoppingStrategy {
    MetricEarlyStoppingStrategy::new(
        &LossMetric::new(),
        Aggregate::Mean,
        Direction::Highest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs: 1 },
    )
}

//! One training with burn-train's `Learner`, stock or released: the same model, batches and
//! optimizer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};
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
use burn_lean::{
    DataParallel, FirstPass, LossScaler, ReleaseOptimizer, Replicas, WithGradientRelease,
};
use tempfile::TempDir;

use crate::harness::{Bits, adamw, assert_bits, bits, flex, numbers, seeded};
use crate::small::panic_of;

const WIDTH: usize = 8;
/// Batches in an epoch.
pub(super) const BATCHES: usize = 7;

/// One activation has four uses, one parameter none, and one layer has running statistics.
#[derive(Module, Debug)]
pub(super) struct Net {
    pub(super) input: Linear,
    pub(super) norm: LayerNorm,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) batch_norm: BatchNorm,
    pub(super) head: Linear,
    pub(super) unused: Param<Tensor<1>>,
    /// Whether the activation with four uses is used so often.
    #[module(skip)]
    pub(super) is_mixed: bool,
    #[module(skip)]
    pub(super) user: User,
}

/// What the code of the user does.
#[derive(Clone, Default)]
pub(super) struct User {
    pub(super) step: Step,
    pub(super) optimize: Optimize,
    /// The bits of the loss of every training step.
    pub(super) losses: Arc<Mutex<Vec<u32>>>,
    /// What `optimize` has seen.
    pub(super) seen: Arc<Mutex<Vec<Bits>>>,
    /// Called in every training step.
    pub(super) on_step: OnStep,
    /// Changes gradients before the step, by hand: for a stock training.
    pub(super) by_hand: Option<Arc<dyn ByHand>>,
    /// Scales the loss.
    pub(super) scaler: Option<LossScaler>,
    /// The head is in this type, and not in f32.
    pub(super) half: Option<DType>,
    /// Multiplies the residuals of training, for large gradients.
    pub(super) residuals: Option<f64>,
}

/// What plain Burn does with all gradients at hand.
pub(super) trait ByHand: Send + Sync {
    /// The scale of the loss.
    fn scale(&self) -> f64 {
        1.0
    }

    fn change(&self, model: &Net, grads: &mut GradientsParams);
}

/// Told how many training steps there were before.
#[derive(Clone)]
pub(super) struct OnStep(pub(super) Arc<dyn Fn(usize) + Send + Sync>);

impl Default for OnStep {
    fn default() -> Self {
        Self(Arc::new(|_| ()))
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} in `step`, {:?} in `optimize`",
            self.step, self.optimize
        )
    }
}

/// What `TrainStep::step` does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Step {
    #[default]
    Default,
    /// Two backward passes, each over parameters of its own.
    TwoParts,
    /// Two backward passes over the same parameters.
    Twice,
    /// Runs backward, and returns no gradients.
    ThrowAway,
    /// Returns the gradients of some parameters.
    Some,
    /// Returns no gradients, every third time.
    Skip,
    /// The same, without a forward pass with the model.
    SkipForward,
}

/// What `TrainStep::optimize` does beside Burn's default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Optimize {
    #[default]
    Default,
    ClampAfter,
    ClampBefore,
    /// Of one layer, by its field.
    ScaleFieldBefore,
    HalfRate,
    /// Does not step when it is called for this time.
    Skip(usize),
    KeepCopy,
    /// Keeps a copy for as long as it looks at it, before the step.
    LookAtCopy,
    ScaleGradients,
    DropGradients,
    /// Freezes the head after the second step.
    Freeze,
    /// Looks at the optimizer's states.
    SaveStates,
}

#[derive(Clone, Debug)]
pub(super) struct Batch {
    seed: usize,
    device: Device,
}

struct Batches;

impl Batcher<usize, Batch> for Batches {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        Batch {
            seed: items.iter().fold(0, |seed, item| 100 * seed + item),
            device: device.clone(),
        }
    }
}

/// Loads these batches, or those of a replica.
fn loader(
    batches: usize,
    shuffle: Option<u64>,
    replicas: Option<&Replicas>,
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
    .build(InMemDataset::new(items))
}

impl Net {
    pub(super) fn new(device: &Device) -> Self {
        let linear = |out| LinearConfig::new(WIDTH, out).init(device);
        seeded(device, |device| Self {
            input: linear(WIDTH),
            norm: LayerNormConfig::new(WIDTH).init(device),
            query: linear(WIDTH),
            key: linear(WIDTH),
            value: linear(WIDTH),
            batch_norm: BatchNormConfig::new(WIDTH).init(device),
            head: linear(1),
            unused: Param::from_tensor(Tensor::ones([3], device)),
            is_mixed: true,
            user: User::default(),
        })
    }

    /// No activation is used more than twice, so that gradients add up to the same bits in any
    /// order.
    pub(super) fn without_third_use() -> Self {
        Self {
            is_mixed: false,
            ..Self::new(&flex())
        }
    }

    /// Of some batch.
    pub(super) fn gradients(&self) -> GradientsParams {
        let batch = Batches.batch(vec![1, 2], &self.head.weight.device());
        GradientsParams::from_grads(self.output(&batch).loss.backward(), self)
    }

    fn hidden(&self, batch: &Batch) -> Tensor<2> {
        let x = numbers([4, WIDTH], batch.seed, &batch.device);
        let x = self.norm.forward(self.input.forward(x));
        if !self.is_mixed {
            let x = self.query.forward(self.key.forward(x.clone())) + x;
            return self.batch_norm.forward(self.value.forward(x.clone()) * x);
        }
        let mixed = self.query.forward(x.clone()) * self.key.forward(x.clone());
        let mixed = mixed + self.value.forward(x.clone()) + x;
        self.batch_norm.forward(mixed)
    }

    fn output(&self, batch: &Batch) -> RegressionOutput {
        let output = match self.user.half {
            None => self.head.forward(self.hidden(batch)),
            Some(half) => {
                let hidden = self.hidden(batch).cast(half);
                self.head.forward(hidden).cast(DType::F32)
            }
        };
        let targets = numbers([4, 1], batch.seed + 1, &batch.device);
        let loss = (output.clone() - targets.clone()).square().mean();
        RegressionOutput::new(loss, output, targets)
    }

    fn note(&self, output: &RegressionOutput) -> usize {
        let loss = output.loss.clone().into_scalar::<f32>();
        let mut losses = self.user.losses.lock().unwrap();
        losses.push(loss.to_bits());
        losses.len() - 1
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = match self.user.step {
            // The head sees what does not lead to the rest.
            Step::SkipForward if self.user.losses.lock().unwrap().len() % 3 == 2 => {
                let zeros = Tensor::zeros([1, 1], &batch.device);
                let loss = Tensor::zeros([1], &batch.device);
                RegressionOutput::new(loss, zeros.clone(), zeros)
            }
            Step::TwoParts => {
                let output = self.head.forward(self.hidden(&batch).detach());
                let loss = output.clone().square().mean();
                RegressionOutput::new(loss, output.clone(), output)
            }
            _ => self.output(&batch),
        };
        let step = self.note(&output);
        (self.user.on_step.0)(step);
        let (mut loss, output, targets) = (output.loss, output.output, output.targets);
        if let Some(factor) = self.user.residuals {
            let residuals = (output.clone() - targets.clone()) * factor;
            loss = residuals.square().mean();
        }
        let item = RegressionOutput::new(loss.clone().detach(), output.detach(), targets);
        let loss = match (&self.user.scaler, &self.user.by_hand) {
            (Some(scaler), _) => scaler.scale(loss),
            (None, Some(by_hand)) => loss * by_hand.scale(),
            (None, None) => loss,
        };
        let mut grads = match self.user.step {
            Step::Skip | Step::SkipForward if step % 3 == 2 => GradientsParams::new(),
            _ => GradientsParams::from_grads(loss.backward(), self),
        };
        match self.user.step {
            Step::Default | Step::Skip | Step::SkipForward => {}
            Step::TwoParts => {
                let rest = self.hidden(&batch).square().mean().backward();
                grads = joined(self, grads, GradientsParams::from_grads(rest, self));
            }
            Step::Twice => {
                let second = self.output(&batch).loss.backward();
                grads = joined(self, grads, GradientsParams::from_grads(second, self));
            }
            Step::ThrowAway => grads = GradientsParams::new(),
            Step::Some => drop(grads.remove::<2>(self.head.weight.id)),
        }
        TrainOutput { grads, item }
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Self {
        let user = self.user.clone();
        let calls = {
            let mut seen = user.seen.lock().unwrap();
            seen.push(bits(&self.clone().materialize()));
            seen.len()
        };
        let head = self.head.weight.id;
        let mut model = self;
        // Before the step.
        match user.optimize {
            Optimize::ClampBefore => model = model.map(&mut Clamp),
            Optimize::ScaleFieldBefore => {
                let weight = model.head.weight.clone();
                model.head.weight = weight.map(|w| (w * 0.5).detach().require_grad());
            }
            Optimize::Skip(skipped) if calls == skipped => return model,
            Optimize::HalfRate => return optim.step(lr.base() / 2.0, model, grads),
            Optimize::LookAtCopy => assert!(!bits(&model.clone().materialize()).is_empty()),
            Optimize::ScaleGradients => {
                let grad = grads.remove::<2>(head).unwrap();
                grads.register(head, grad * 0.5);
            }
            Optimize::DropGradients => drop(grads.remove::<2>(head)),
            _ => {}
        }
        if let Some(by_hand) = &user.by_hand {
            by_hand.change(&model, &mut grads);
        }
        let copy = matches!(user.optimize, Optimize::KeepCopy).then(|| model.clone());
        let mut model = optim.step(lr, model, grads);
        drop(copy);
        // After it.
        match user.optimize {
            Optimize::ClampAfter => model = model.map(&mut Clamp),
            Optimize::Freeze if calls >= 2 => model.head = model.head.no_grad(),
            Optimize::SaveStates => drop(optim.to_record()),
            _ => {}
        }
        model
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        let output = self.output(&batch);
        // In the same list: what validates is part of what is compared.
        self.note(&output);
        output
    }
}

/// Two sets of gradients, as Burn's accumulator joins them.
fn joined(model: &Net, one: GradientsParams, other: GradientsParams) -> GradientsParams {
    let mut sums = burn::optim::GradientsAccumulator::new();
    sums.accumulate(model, one);
    sums.accumulate(model, other);
    sums.grads()
}

/// Some weights are larger.
pub(super) const LARGEST: f32 = 0.3;

/// Clamps every weight, and keeps it a leaf.
struct Clamp;

impl burn::module::ModuleMapper for Clamp {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.is_require_grad() {
            true => param.map(|w| w.clamp(-LARGEST, LARGEST).detach().require_grad()),
            false => param,
        }
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
    pub(super) first_pass: FirstPass,
    /// The settings of the released training's optimizer.
    pub(super) settings: Settings,
    pub(super) has_two_passes: bool,
    /// Batches in an epoch, of all replicas.
    pub(super) batches: usize,
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
    /// What `optimize` was given.
    pub(super) seen: Vec<Bits>,
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

    /// AdamW with a model [without a third use](Net::without_third_use).
    pub(super) fn without_third_use(user: User) -> Self {
        let model = Net {
            user,
            ..Net::without_third_use()
        };
        Self {
            model,
            ..Self::new(adamw)
        }
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
            first_pass: FirstPass::default(),
            settings: Arc::new(|optim| optim),
            has_two_passes: false,
            batches: BATCHES,
            replicas: None,
            directory: Directory::temporary(),
        }
    }

    pub(super) fn run(&self, mode: Mode) -> Run {
        let model = self.model.clone();
        // What runs of this model did before is not this run's.
        let losses: Arc<Mutex<Vec<u32>>> = Arc::default();
        let seen: Arc<Mutex<Vec<Bits>>> = Arc::default();
        // Burn's clones share their running statistics.
        let batch_norm = BatchNormConfig::new(WIDTH).init(&self.model.head.weight.device());
        let model = Net {
            batch_norm: batch_norm.load_record(model.batch_norm.into_record()),
            user: User {
                losses: losses.clone(),
                seen: seen.clone(),
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
            seen: std::mem::take(&mut seen.lock().unwrap()),
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
        let mut train = loader(self.batches, self.shuffle, replicas);
        if let Some(epoch) = self.checkpoint {
            train = ResumedDataLoader::new(train, epoch + 1);
        }
        let valid = loader(2, None, None);
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
                let mut strategy = GradientReleaseStrategy::new(self.device.clone())
                    .with_monitor(monitor)
                    .with_first_pass(self.first_pass);
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

    /// The text with which a released training refuses what a stock one takes.
    #[track_caller]
    pub(super) fn refused(&self) -> String {
        self.run(Mode::Stock);
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

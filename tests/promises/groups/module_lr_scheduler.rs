//! A learning rate for each group: the rates are those of the schedulers by themselves, through
//! records and burn-train's `Learner` too.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::ParamId;
use burn::optim::{AdamConfig, LearningRate};
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Recorder,
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::train::Learner;
use burn_gradient_release::{
    ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord, ParamGroup, ReleaseOptimizer,
    WithGradientRelease,
};

use crate::harness::models::{Regression, RegressionModel, Size};
use crate::harness::run::Start;
use crate::harness::{Plain, Release};

/// One scheduler of each kind, and the paths that they are for.
const PATHS: [&str; 7] = [
    "cosine",
    "linear",
    "exponential",
    "noam",
    "step",
    "composed",
    "own",
];

fn scheduler() -> ModuleLrScheduler {
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.5, 40);
    let linear = LinearLrSchedulerConfig::new(0.4, 0.1, 30);
    let exponential = ExponentialLrSchedulerConfig::new(0.3, 0.9);
    let noam = NoamLrSchedulerConfig::new(0.2).with_warmup_steps(10);
    let step = StepLrSchedulerConfig::new(0.6, 3);
    let composed = ComposedLrSchedulerConfig::new()
        .linear(linear.clone())
        .cosine(cosine.clone());
    ModuleLrScheduler::new(cosine.clone().init().expect("valid"))
        .with_group(path("linear"), linear.init().expect("valid"))
        .with_group(path("exponential"), exponential.init().expect("valid"))
        .with_group(path("noam"), noam.init().expect("valid"))
        .with_group(path("step"), step.init().expect("valid"))
        .with_group(path("composed"), composed.init().expect("valid"))
        .with_group(path("own"), Own(0.1))
}

fn path(path: &str) -> ParamGroup {
    ParamGroup::from_path(path)
}

/// A scheduler of a user, whose record needs 64 bits.
#[derive(Clone)]
struct Own(LearningRate);

impl LrScheduler for Own {
    type Record<B: Backend> = Vec<f64>;

    fn step(&mut self) -> LearningRate {
        self.0 *= 0.9;
        self.0
    }

    fn to_record<B: Backend>(&self) -> Self::Record<B> {
        vec![self.0]
    }

    fn load_record<B: Backend>(self, record: Self::Record<B>) -> Self {
        Self(record[0])
    }
}

/// Rates published for each of [`PATHS`].
fn published(rates: &ModuleLearningRates) -> [LearningRate; 7] {
    PATHS.map(|path| {
        rates
            .lr_from_param(ParamId::new(), Some(path))
            .expect("published")
    })
}

/// The next rates.
fn next(scheduler: &mut ModuleLrScheduler) -> [LearningRate; 7] {
    let base = scheduler.step();
    let rates = scheduler.rates();
    assert_eq!(rates.base(), Some(base));
    let published = published(&rates);
    assert_eq!(published[0], base, "no group has it");
    published
}

#[test]
fn each_group_has_the_rates_of_its_scheduler() {
    let mut alone = LinearLrSchedulerConfig::new(0.4, 0.1, 30)
        .init()
        .expect("valid");
    let mut base = CosineAnnealingLrSchedulerConfig::new(0.5, 40)
        .init()
        .expect("valid");
    let mut own = Own(0.1);
    let mut scheduler = scheduler();
    assert_eq!(scheduler.rates().base(), None);
    assert_eq!(scheduler.rates().lr_from_param(ParamId::new(), None), None);
    for _ in 0..10 {
        let rates = next(&mut scheduler);
        assert_eq!(rates[0], base.step());
        assert_eq!(rates[1], alone.step());
        assert_eq!(rates[6], own.step());
    }
}

#[test]
fn the_last_group_that_matches_decides() {
    let id = ParamId::new();
    let mut scheduler = ModuleLrScheduler::new(0.1)
        .with_group(ParamGroup::from_predicate("head"), 0.2)
        .with_group(ParamGroup::from_predicate("bias"), 0.3)
        .with_group(ParamGroup::from_ids([id]), 0.4);
    let rates = scheduler.rates();
    scheduler.step();
    let of = |path| rates.lr_from_param(ParamId::new(), Some(path));
    assert_eq!(of("body.weight"), Some(0.1));
    assert_eq!(of("head.weight"), Some(0.2));
    assert_eq!(of("head.bias"), Some(0.3));
    assert_eq!(rates.lr_from_param(id, Some("head.bias")), Some(0.4));
}

/// Through Burn's recorders, at half precision too: that is for tensors.
#[test]
fn a_record_resumes_every_scheduler() {
    let device = Default::default();
    let mut uninterrupted = scheduler();
    for _ in 0..5 {
        next(&mut uninterrupted);
    }
    let record = uninterrupted.to_record::<Plain>();

    let bin = BinBytesRecorder::<HalfPrecisionSettings>::default();
    let bytes = Recorder::<Plain>::record(&bin, record.clone(), ()).expect("recorded");
    let from_bin = Recorder::<Plain>::load(&bin, bytes, &device).expect("loaded");
    let named = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = Recorder::<Plain>::record(&named, record.clone(), ()).expect("recorded");
    let from_named = Recorder::<Plain>::load(&named, bytes, &device).expect("loaded");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = NamedMpkFileRecorder::<HalfPrecisionSettings>::default();
    let place = folder.path().join("scheduler");
    Recorder::<Plain>::record(&file, record, place.clone()).expect("recorded");
    let from_file = Recorder::<Plain>::load(&file, place, &device).expect("loaded");

    let records: [ModuleLrSchedulerRecord; 3] = [from_bin, from_named, from_file];
    let mut resumed = records.map(|record| scheduler().load_record::<Plain>(record));
    let mut fresh = scheduler();
    for _ in 0..10 {
        let expected = next(&mut uninterrupted);
        for resumed in &mut resumed {
            assert_eq!(next(resumed), expected);
        }
        let fresh = next(&mut fresh);
        assert!(
            fresh.iter().zip(expected).all(|(a, b)| *a != b),
            "{fresh:?}"
        );
    }
}

#[test]
#[should_panic(
    expected = "the record of the `ModuleLrScheduler` has 6 groups, and the scheduler has 1"
)]
fn a_record_of_other_groups() {
    let record = scheduler().to_record::<Plain>();
    let other = ModuleLrScheduler::new(0.1).with_group(ParamGroup::all(), 0.1);
    let _ = other.load_record::<Plain>(record);
}

#[test]
#[should_panic(expected = "does not fit the scheduler for path \"head\"")]
fn a_record_of_another_kind_of_scheduler() {
    let with = |own| ModuleLrScheduler::new(0.1).with_group(path("head"), own);
    let record = with(Own(0.1)).to_record::<Plain>();
    let linear = LinearLrSchedulerConfig::new(0.4, 0.1, 30)
        .init()
        .expect("valid");
    let other = ModuleLrScheduler::new(0.1).with_group(path("head"), linear);
    let _ = other.load_record::<Plain>(record);
}

/// A record with a tensor is the one thing that cannot be kept.
#[test]
#[should_panic(expected = "keeps a tensor in its record")]
fn a_scheduler_with_tensors() {
    #[derive(Clone)]
    struct Tensors;

    impl LrScheduler for Tensors {
        type Record<B: Backend> = Tensor<B, 1>;

        fn step(&mut self) -> LearningRate {
            0.1
        }

        fn to_record<B: Backend>(&self) -> Self::Record<B> {
            Tensor::ones([1], &Default::default())
        }

        fn load_record<B: Backend>(self, _record: Self::Record<B>) -> Self {
            self
        }
    }

    ModuleLrScheduler::new(Tensors).to_record::<Plain>();
}

#[test]
fn stepping_a_clone_changes_nothing_for_the_original() {
    let mut original = scheduler();
    next(&mut original);
    let rates = original.rates();
    let before = published(&rates);
    let mut clone = original.clone();
    assert_eq!(published(&clone.rates()), before, "the same state");
    let ahead = next(&mut clone);
    assert_eq!(published(&rates), before);
    // Nor does a clone that has loaded a record, while the original is there.
    let mut loaded = original
        .clone()
        .load_record::<Plain>(clone.to_record::<Plain>());
    next(&mut loaded);
    assert_eq!(published(&rates), before);
    assert_eq!(next(&mut original), ahead);
    assert_eq!(published(&rates), ahead);
    // Once the original is gone there are no rates, not even those of a clone.
    drop(original);
    assert_eq!(rates.base(), None);
    next(&mut clone);
    assert_eq!(rates.base(), None);
    // But a clone that has loaded a record takes its place.
    let resumed = next(&mut loaded);
    assert_eq!(published(&rates), resumed);
}

/// burn-train clones the scheduler to load a record into it, and to clone the learner.
#[test]
fn the_handle_lives_through_a_learner() {
    let start = Start::new::<Regression>(Size::Small);
    let model: RegressionModel<Release> = start.model::<Regression, Release>();
    let optim = AdamConfig::new().init().with_gradient_release();
    let scheduler = scheduler();
    let rates = scheduler.rates();
    let mut learner = Learner::new(model, optim, scheduler);

    let mut expected = self::scheduler();
    for _ in 0..3 {
        learner.lr_step();
        assert_eq!(published(&rates), next(&mut expected));
        assert_eq!(learner.lr_current(), published(&rates)[0]);
    }
    // As a strategy asks for the optimizer: the clone is dropped.
    let handle =
        ReleaseOptimizer::<burn::optim::Adam, RegressionModel<Release>, Release>::handle_of;
    assert!(handle(&learner).is_some());
    learner.lr_step();
    assert_eq!(published(&rates), next(&mut expected));

    // Twice, as after a run that was resumed twice.
    for _ in 0..2 {
        for steps in [20, 2] {
            let mut saved = self::scheduler();
            for _ in 0..steps {
                next(&mut saved);
            }
            learner.load_scheduler(saved.to_record::<Release>());
            expected = saved;
        }
        for _ in 0..3 {
            learner.lr_step();
            assert_eq!(published(&rates), next(&mut expected));
            assert_eq!(learner.lr_current(), published(&rates)[0]);
        }
        // A copy of the learner that goes on by itself is not what the handle belongs to.
        let mut copy = learner.clone();
        copy.lr_step();
        learner.lr_step();
        assert_eq!(published(&rates), next(&mut expected));
        copy.lr_step();
        assert_eq!(published(&rates), published(&expected.rates()));
    }
}

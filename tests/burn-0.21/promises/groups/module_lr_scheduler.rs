//! A learning rate for each group: the rates are those of the schedulers by themselves, through
//! records and burn-train's `Learner` too.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::optim::LearningRate;
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Recorder,
};
use burn_gradient_release::{ModuleLearningRates, ModuleLrScheduler, ModuleLrSchedulerRecord};

use crate::harness::prelude::*;

/// One scheduler of each kind, and the paths that they are for. The first one is the base.
const PATHS: [&str; 7] = [
    "cosine",
    "linear",
    "exponential",
    "noam",
    "step",
    "composed",
    "own",
];

fn cosine() -> CosineAnnealingLrSchedulerConfig {
    CosineAnnealingLrSchedulerConfig::new(0.5, 40)
}

fn linear() -> LinearLrSchedulerConfig {
    LinearLrSchedulerConfig::new(0.4, 0.1, 30)
}

fn scheduler() -> ModuleLrScheduler {
    let exponential = ExponentialLrSchedulerConfig::new(0.3, 0.9);
    let noam = NoamLrSchedulerConfig::new(0.2).with_warmup_steps(10);
    let step = StepLrSchedulerConfig::new(0.6, 3);
    let composed = ComposedLrSchedulerConfig::new();
    let composed = composed.linear(linear()).cosine(cosine());
    ModuleLrScheduler::new(cosine().init().expect("valid"))
        .with_group(path("linear"), linear().init().expect("valid"))
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
    let mut base = cosine().init().expect("valid");
    let (mut linear, mut own) = (linear().init().expect("valid"), Own(0.1));
    let mut scheduler = scheduler();
    assert_eq!(scheduler.rates().base(), None);
    assert_eq!(scheduler.rates().lr_from_param(ParamId::new(), None), None);
    for _ in 0..10 {
        let rates = next(&mut scheduler);
        assert_eq!(
            [rates[0], rates[1], rates[6]],
            [base.step(), linear.step(), own.step()]
        );
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
    let folder = tempfile::tempdir().expect("a temporary directory");
    let place = folder.path().join("scheduler");

    let bin = BinBytesRecorder::<HalfPrecisionSettings>::default();
    let bytes = Recorder::<Plain>::record(&bin, record.clone(), ()).expect("recorded");
    let from_bin = Recorder::<Plain>::load(&bin, bytes, &device).expect("loaded");
    let named = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = Recorder::<Plain>::record(&named, record.clone(), ()).expect("recorded");
    let from_named = Recorder::<Plain>::load(&named, bytes, &device).expect("loaded");
    let file = NamedMpkFileRecorder::<HalfPrecisionSettings>::default();
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
    let linear = linear().init().expect("valid");
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
    // Its own handle stays its own, beside that of another clone.
    let own = loaded.rates();
    let mut second = original
        .clone()
        .load_record::<Plain>(original.to_record::<Plain>());
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
    assert_eq!(published(&own), resumed);
    next(&mut second);
    assert_eq!(published(&own), resumed);
    drop(second);
    assert_eq!(published(&own), resumed);
}

/// burn-train loads a record into a clone, and replaces the original by it: also a second time, and
/// also after a clone of the whole `Learner` was dropped, as when a strategy asks for its
/// optimizer.
#[test]
fn the_handle_is_that_of_the_scheduler_that_was_resumed() {
    let mut current = scheduler();
    let mut handles = Vec::new();
    for steps in [20, 2, 5] {
        handles.push(current.rates());
        drop(current.clone());
        let mut saved = scheduler();
        for _ in 0..steps {
            next(&mut saved);
        }
        current = current
            .clone()
            .load_record::<Release>(saved.to_record::<Release>());
        for _ in 0..3 {
            let expected = next(&mut saved);
            assert_eq!(next(&mut current), expected);
            for handle in &handles {
                assert_eq!(published(handle), expected);
            }
        }
        // A copy that goes on by itself is not what the handle belongs to.
        let expected = published(&handles[0]);
        let mut copy = current.clone();
        next(&mut copy);
        next(&mut copy);
        assert_eq!(published(&handles[0]), expected);
    }
}

//! Checkpoints pass freely between plain Burn and release, both ways, in memory and on disk.

use std::path::PathBuf;

use burn::module::{Module, list_param_ids};
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Record, Recorder,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{ReleaseBackend, ReleaseOptimizer, WithGradientRelease};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{self, RATE, Start, ordinary_step};
use crate::harness::weights::readable;
use crate::harness::{Plain, Release, Weights};

type P = Plain;
type R = Release;

/// Steps before the checkpoint, and after it.
const BEFORE: u64 = 4;
const AFTER: u64 = 6;

/// The record of the optimizer, whichever optimizer that is.
type State<B> = <burn::optim::adaptor::OptimizerAdaptor<Adam, MlpModel<B>, B> as Optimizer<
    MlpModel<B>,
    B,
>>::Record;

/// Both loops behind one face.
trait Trainer<B: AutodiffBackend>: Optimizer<MlpModel<B>, B, Record = State<B>> {
    fn fresh() -> Self;
    fn train(&mut self, model: MlpModel<B>, step: u64) -> MlpModel<B>;
}

type PlainAdam = burn::optim::adaptor::OptimizerAdaptor<Adam, MlpModel<P>, P>;
type ReleaseAdam<B> = ReleaseOptimizer<Adam, MlpModel<B>, B>;

impl Trainer<P> for PlainAdam {
    fn fresh() -> Self {
        AdamConfig::new().init()
    }

    fn train(&mut self, model: MlpModel<P>, step: u64) -> MlpModel<P> {
        let loss = Mlp::loss::<P>(&model, Size::Small, step);
        ordinary_step(RATE, model, self, loss)
    }
}

impl<B: ReleaseBackend> Trainer<B> for ReleaseAdam<B> {
    fn fresh() -> Self {
        AdamConfig::new().init().with_gradient_release()
    }

    fn train(&mut self, model: MlpModel<B>, step: u64) -> MlpModel<B> {
        let model = self.arm(RATE, model);
        let loss = Mlp::loss::<B>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        assert!(grads.is_empty(), "released");
        self.step(RATE, model, grads)
    }
}

/// One way to keep a record, and to read it on another backend.
trait Carrier {
    fn carry<A: Backend, B: Backend, X: Record<A>, Y: Record<B>>(&self, name: &str, record: X)
    -> Y;
}

/// In memory, by one of Burn's recorders.
macro_rules! bytes_carrier {
    ($name:ident, $recorder:ident) => {
        struct $name;

        impl Carrier for $name {
            fn carry<A: Backend, B: Backend, X: Record<A>, Y: Record<B>>(
                &self,
                _: &str,
                record: X,
            ) -> Y {
                let recorder = $recorder::<FullPrecisionSettings>::default();
                let bytes = Recorder::<A>::record(&recorder, record, ()).expect("recorded");
                Recorder::<B>::load(&recorder, bytes, &Default::default()).expect("loaded")
            }
        }
    };
}

/// On disk, by one of Burn's recorders.
macro_rules! file_carrier {
    ($name:ident, $recorder:ident) => {
        struct $name(tempfile::TempDir);

        impl Carrier for $name {
            fn carry<A: Backend, B: Backend, X: Record<A>, Y: Record<B>>(
                &self,
                name: &str,
                record: X,
            ) -> Y {
                let recorder = $recorder::<FullPrecisionSettings>::default();
                let path: PathBuf = self.0.path().join(name);
                Recorder::<A>::record(&recorder, record, path.clone()).expect("recorded");
                Recorder::<B>::load(&recorder, path, &Default::default()).expect("loaded")
            }
        }
    };
}

bytes_carrier!(InBytes, BinBytesRecorder);
bytes_carrier!(InNamedBytes, NamedMpkBytesRecorder);
file_carrier!(InFile, BinFileRecorder);
file_carrier!(InNamedFile, NamedMpkFileRecorder);

/// Trains `From`, hands the checkpoint to `To`, and compares with a run without interruption.
fn hand_over<A, From, B, To>(carrier: &impl Carrier)
where
    A: AutodiffBackend,
    From: Trainer<A>,
    B: AutodiffBackend,
    To: Trainer<B>,
{
    let start = Start::new::<Mlp>(Size::Small);
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), BEFORE + AFTER);
    // The plain optimizer at the point of the checkpoint.
    let mut plain = start.model::<Mlp, P>();
    let mut plain_optim = PlainAdam::fresh();
    for step in 0..BEFORE {
        plain = plain_optim.train(plain, step);
    }

    let mut model = start.model::<Mlp, A>();
    let mut optim = From::fresh();
    for step in 0..BEFORE {
        model = optim.train(model, step);
    }
    let ids = list_param_ids(&model);
    let saved: State<A> = optim.to_record();
    assert_eq!(saved.len(), ids.len());
    let state = readable::<A, _>(saved.clone());
    assert_eq!(
        state,
        readable::<P, _>(plain_optim.to_record()),
        "moments and step counts"
    );

    let record = carrier.carry::<A, B, _, _>("model", model.into_record());
    let carried: State<B> = carrier.carry::<A, B, _, _>("optim", saved);
    assert_eq!(
        readable::<B, _>(carried.clone()),
        state,
        "carried without loss"
    );

    // Into a model of its own, whose ids come from the record.
    let mut model = Start::new::<Mlp>(Size::Small)
        .model::<Mlp, B>()
        .load_record(record);
    assert_eq!(list_param_ids(&model), ids);
    let mut optim = To::fresh().load_record(carried);
    for step in BEFORE..BEFORE + AFTER {
        model = optim.train(model, step);
        Weights::of::<B, _>(&model)
            .assert_same(&expected.steps[step as usize], format!("after step {step}"));
    }
    for step in BEFORE..BEFORE + AFTER {
        plain = plain_optim.train(plain, step);
    }
    assert_eq!(
        readable::<B, _>(optim.to_record()),
        readable::<P, _>(plain_optim.to_record()),
        "moments and step counts at the end"
    );
}

fn every_way<C: Carrier>(carrier: impl Fn() -> C) {
    hand_over::<P, PlainAdam, R, ReleaseAdam<R>>(&carrier());
    hand_over::<R, ReleaseAdam<R>, P, PlainAdam>(&carrier());
    hand_over::<R, ReleaseAdam<R>, R, ReleaseAdam<R>>(&carrier());
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn in_bytes() {
    every_way(|| InBytes);
}

#[test]
fn in_named_bytes() {
    every_way(|| InNamedBytes);
}

#[test]
fn in_a_file() {
    every_way(|| InFile(directory()));
}

#[test]
fn in_a_named_file() {
    every_way(|| InNamedFile(directory()));
}

/// A record without its moments would pass a comparison of weights alone for one step; it does
/// not pass ours.
#[test]
fn losing_the_state_would_be_noticed() {
    let start = Start::new::<Mlp>(Size::Small);
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), BEFORE + 1);
    let mut model = start.model::<Mlp, R>();
    let mut optim = ReleaseAdam::<R>::fresh();
    for step in 0..BEFORE {
        model = optim.train(model, step);
    }
    let mut forgetful = ReleaseAdam::<R>::fresh();
    let model = forgetful.train(model, BEFORE);
    assert!(!Weights::of::<R, _>(&model).same(&expected.steps[BEFORE as usize]));
}

//! Checkpoints pass freely between plain Burn and release, both ways, in memory and on disk.

use burn::module::{Module, list_param_ids};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, Optimizer};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Record, Recorder,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{RATE, Start, armed_step, ordinary_step};
use crate::harness::weights::readable;
use crate::harness::{Plain, Release, Weights};

type P = Plain;
type R = Release;
type PlainAdam = OptimizerAdaptor<Adam, MlpModel<P>, P>;
type ReleaseAdam = ReleaseOptimizer<Adam, MlpModel<R>, R>;

/// Steps before the checkpoint, and all.
const BEFORE: u64 = 4;
const STEPS: u64 = 10;

/// The record of the optimizer, whichever optimizer that is.
type State<B> = <OptimizerAdaptor<Adam, MlpModel<B>, B> as Optimizer<MlpModel<B>, B>>::Record;

/// Both loops behind one face.
trait Trainer<B: AutodiffBackend>: Optimizer<MlpModel<B>, B, Record = State<B>> {
    fn fresh() -> Self;
    fn train(&mut self, model: MlpModel<B>, step: u64) -> MlpModel<B>;

    /// Moments, step counts and all.
    fn state(&self) -> Value {
        readable::<B, _>(self.to_record())
    }
}

impl Trainer<P> for PlainAdam {
    fn fresh() -> Self {
        AdamConfig::new().init()
    }

    fn train(&mut self, model: MlpModel<P>, step: u64) -> MlpModel<P> {
        let loss = Mlp::loss::<P>(&model, Size::Small, step);
        ordinary_step(RATE, model, self, loss)
    }
}

impl Trainer<R> for ReleaseAdam {
    fn fresh() -> Self {
        AdamConfig::new().init().with_gradient_release()
    }

    fn train(&mut self, model: MlpModel<R>, step: u64) -> MlpModel<R> {
        armed_step(RATE, model, self, |model| {
            Mlp::loss::<R>(model, Size::Small, step)
        })
    }
}

/// The ways in which Burn's recorders keep a record.
#[derive(Debug)]
enum Carrier {
    Bytes,
    NamedBytes,
    File(TempDir),
    NamedFile(TempDir),
}

impl Carrier {
    fn all() -> [Self; 4] {
        let directory = || tempfile::tempdir().expect("a temporary directory");
        [
            Self::Bytes,
            Self::NamedBytes,
            Self::File(directory()),
            Self::NamedFile(directory()),
        ]
    }

    /// Keeps a record, and reads it on another backend.
    fn carry<A: Backend, B: Backend, X: Record<A>, Y: Record<B>>(
        &self,
        name: &str,
        record: X,
    ) -> Y {
        macro_rules! in_memory {
            ($recorder:ident) => {{
                let recorder = $recorder::<FullPrecisionSettings>::default();
                let bytes = Recorder::<A>::record(&recorder, record, ()).expect("recorded");
                Recorder::<B>::load(&recorder, bytes, &Default::default()).expect("loaded")
            }};
        }
        macro_rules! on_disk {
            ($recorder:ident, $directory:ident) => {{
                let recorder = $recorder::<FullPrecisionSettings>::default();
                let path = $directory.path().join(name);
                Recorder::<A>::record(&recorder, record, path.clone()).expect("recorded");
                Recorder::<B>::load(&recorder, path, &Default::default()).expect("loaded")
            }};
        }
        match self {
            Self::Bytes => in_memory!(BinBytesRecorder),
            Self::NamedBytes => in_memory!(NamedMpkBytesRecorder),
            Self::File(directory) => on_disk!(BinFileRecorder, directory),
            Self::NamedFile(directory) => on_disk!(NamedMpkFileRecorder, directory),
        }
    }
}

/// Plain Burn's run without interruption.
struct Reference {
    start: Start,
    /// After each step.
    weights: Vec<Weights>,
    states: Vec<Value>,
}

fn reference() -> Reference {
    let start = Start::new::<Mlp>(Size::Small);
    let mut model = start.model::<Mlp, P>();
    let mut optim = PlainAdam::fresh();
    let (mut weights, mut states) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        model = optim.train(model, step);
        weights.push(Weights::of::<P, _>(&model));
        states.push(optim.state());
    }
    Reference {
        start,
        weights,
        states,
    }
}

/// Trains `From`, hands the checkpoint to `To`, and compares.
fn hand_over<A, From, B, To>(reference: &Reference, carrier: &Carrier)
where
    A: AutodiffBackend,
    From: Trainer<A>,
    B: AutodiffBackend,
    To: Trainer<B>,
{
    let mut model = reference.start.model::<Mlp, A>();
    let mut optim = From::fresh();
    for step in 0..BEFORE {
        model = optim.train(model, step);
    }
    let ids = list_param_ids(&model);
    let saved = optim.to_record();
    assert_eq!(saved.len(), ids.len());
    let state = optim.state();
    assert_eq!(
        state,
        reference.states[BEFORE as usize - 1],
        "{carrier:?}: at the checkpoint"
    );

    let record = carrier.carry::<A, B, _, _>("model", model.into_record());
    let carried: State<B> = carrier.carry::<A, B, _, _>("optim", saved);

    // Into a model of its own, whose ids come from the record.
    let mut model = Start::new::<Mlp>(Size::Small)
        .model::<Mlp, B>()
        .load_record(record);
    assert_eq!(list_param_ids(&model), ids);
    let mut optim = To::fresh().load_record(carried);
    assert_eq!(optim.state(), state, "{carrier:?}: carried without loss");
    for step in BEFORE..STEPS {
        model = optim.train(model, step);
        let context = format!("{carrier:?}, after step {step}");
        Weights::of::<B, _>(&model).assert_same(&reference.weights[step as usize], &context);
        assert_eq!(optim.state(), reference.states[step as usize], "{context}");
    }
}

#[test]
fn between_plain_burn_and_release_by_every_recorder() {
    let reference = reference();
    for carrier in Carrier::all() {
        hand_over::<P, PlainAdam, R, ReleaseAdam>(&reference, &carrier);
        hand_over::<R, ReleaseAdam, P, PlainAdam>(&reference, &carrier);
        hand_over::<R, ReleaseAdam, R, ReleaseAdam>(&reference, &carrier);
    }
}

/// A record without its moments would pass a comparison of weights alone for one step; it does
/// not pass ours.
#[test]
fn losing_the_state_would_be_noticed() {
    let reference = reference();
    let mut model = reference.start.model::<Mlp, R>();
    let mut optim = ReleaseAdam::fresh();
    for step in 0..BEFORE {
        model = optim.train(model, step);
    }
    let mut forgetful = ReleaseAdam::fresh();
    let model = forgetful.train(model, BEFORE);
    assert!(!Weights::of::<R, _>(&model).same(&reference.weights[BEFORE as usize]));
}

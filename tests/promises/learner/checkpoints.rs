//! A checkpoint of either is a checkpoint of the other, whichever recorder writes it.

use burn::backend::Flex;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, Optimizer};
use burn::record::{
    BinFileRecorder, BinGzFileRecorder, FileRecorder, FullPrecisionSettings, HalfPrecisionSettings,
    JsonGzFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder,
};
use burn_gradient_release_train::resume::AtomicFileRecorder;

use super::rates;
use crate::harness::learner::{Directory, Mode, ModelOf, Released, Run, Stock, Training, train};
use crate::harness::models::{Regression, Size};
use crate::harness::run::Start;
use crate::harness::weights::readable;
use crate::harness::{Plain, Release};

/// A recorder for either backend.
trait AnyRecorder: FileRecorder<Plain> + FileRecorder<Release> + FileRecorder<Flex> {}

impl<F> AnyRecorder for F where F: FileRecorder<Plain> + FileRecorder<Release> + FileRecorder<Flex> {}

/// Epochs of each of the three parts of a run, and batches in an epoch.
const EPOCHS: usize = 2;
const BATCHES: usize = 5;

fn training() -> Training {
    Training {
        epochs: 3 * EPOCHS,
        batches: BATCHES,
        ..Training::new()
    }
}

/// The run without interruption.
fn whole(start: &Start) -> Run {
    let run = train::<Stock, Regression, _, _, _>(start, &AdamConfig::new(), rates(), &training());
    run.assert_trained();
    run
}

/// A part of a run, from what the part before saved, or from `start`.
fn part<D: Mode, F>(part: usize, start: &Start, directory: &Directory, recorder: F) -> Run
where
    F: FileRecorder<D::B> + FileRecorder<Flex> + 'static,
{
    let training = Training {
        directory: directory.clone(),
        epochs: (part + 1) * EPOCHS,
        checkpoint: (part > 0).then_some(part * EPOCHS),
        ..training().saving_with(recorder)
    };
    train::<D, Regression, _, _, _>(start, &AdamConfig::new(), rates(), &training)
}

/// Weights to begin a resumed run with, which the checkpoint has to replace.
fn other_start() -> Start {
    Start::seeded::<Regression>(Size::Small, 1)
}

/// In three parts, the middle one with `inner`: every weight as in one go.
fn handed_over<A, B, F, G>(outer: F, inner: G)
where
    A: Mode,
    B: Mode,
    F: AnyRecorder + FileRecorder<A::B> + 'static,
    G: AnyRecorder + FileRecorder<B::B> + 'static,
{
    let start = Start::new::<Regression>(Size::Small);
    let whole = whole(&start);
    let directory = Directory::temporary();
    part::<A, _>(0, &start, &directory, outer.clone());
    let second = part::<B, _>(1, &other_start(), &directory, inner);
    let third = part::<A, _>(2, &other_start(), &directory, outer);
    for (place, run) in [(1, &second), (2, &third)] {
        let found = &whole.found[place * EPOCHS * BATCHES..];
        assert!(
            run.found.iter().zip(found).all(|(a, b)| a.same(b)),
            "part {place}"
        );
    }
    let difference = third.difference_from(&whole, 2 * EPOCHS * BATCHES);
    assert_eq!(difference, None, "the end");
}

/// The same files from both, byte for byte; of the optimizer's, a hash map, the same content.
fn same_files<F: AnyRecorder + 'static, G: AnyRecorder + 'static>(stock: F, release: G) {
    let start = Start::new::<Regression>(Size::Small);
    let expected = part::<Stock, _>(0, &start, &Directory::temporary(), stock.clone()).directory;
    let found = part::<Released, _>(0, &start, &Directory::temporary(), release.clone()).directory;

    let names = expected.checkpoints();
    assert_eq!(names.len(), 3 * EPOCHS);
    // The atomic recorder's files have checksums beside them.
    let mut saved = found.checkpoints();
    saved.retain(|name| !name.ends_with(".sha256"));
    assert_eq!(saved, names);
    for name in names.iter().filter(|name| !name.starts_with("optim")) {
        let bytes = |directory: &Directory| std::fs::read(directory.checkpoint(name)).expect(name);
        assert!(bytes(&found) == bytes(&expected), "{name} differs");
    }
    for epoch in 1..=EPOCHS {
        let name = format!("optim-{epoch}");
        // Either recorder reads what the other wrote.
        let expected = optim_record(release.clone(), &expected, &name);
        let found = optim_record(stock.clone(), &found, &name);
        assert_eq!(found, expected, "{name}");
        assert_eq!(found.as_object().map(|params| params.len()), Some(6));
    }
}

/// Optimizer record of a checkpoint.
fn optim_record<F: FileRecorder<Plain>>(
    recorder: F,
    directory: &Directory,
    name: &str,
) -> serde_json::Value {
    type Model = ModelOf<Stock, Regression>;
    type State = <OptimizerAdaptor<Adam, Model, Plain> as Optimizer<Model, Plain>>::Record;

    let record: State = recorder
        .load(directory.checkpoint(name), &Default::default())
        .expect("the file is whole");
    readable::<Plain, _>(record)
}

/// A test per recorder of Burn.
macro_rules! recorders {
    ($($name:ident: $recorder:ident,)*) => {
        $(
            mod $name {
                use super::*;

                type R = $recorder<FullPrecisionSettings>;

                #[test]
                fn stock_release_stock() {
                    handed_over::<Stock, Released, _, _>(R::default(), R::default());
                }

                #[test]
                fn stock_release_stock_through_atomic_files() {
                    let atomic = AtomicFileRecorder::new(R::default());
                    handed_over::<Stock, Released, _, _>(R::default(), atomic);
                }

                #[test]
                fn same_files_as_stock() {
                    same_files(R::default(), R::default());
                    same_files(R::default(), AtomicFileRecorder::new(R::default()));
                }
            }
        )*
    };
}

recorders! {
    bin: BinFileRecorder,
    bin_gz: BinGzFileRecorder,
    json_gz: JsonGzFileRecorder,
    pretty_json: PrettyJsonFileRecorder,
    named_mpk: NamedMpkFileRecorder,
    named_mpk_gz: NamedMpkGzFileRecorder,
}

#[test]
fn release_stock_release() {
    type R = NamedMpkFileRecorder<FullPrecisionSettings>;
    handed_over::<Released, Stock, _, _>(R::default(), R::default());
}

/// `CompactRecorder`: what it saves is rounded, so that no resume is the run without interruption.
/// Stock resumed from the same files is the reference.
#[test]
fn half_precision_is_resumed_as_stock_resumes_it() {
    type R = NamedMpkFileRecorder<HalfPrecisionSettings>;
    let start = Start::new::<Regression>(Size::Small);
    let resume = |middle: fn(usize, &Start, &Directory, R) -> Run| {
        let directory = Directory::temporary();
        part::<Stock, _>(0, &start, &directory, R::default());
        let second = middle(1, &other_start(), &directory, R::default());
        (
            second,
            part::<Stock, _>(2, &other_start(), &directory, R::default()),
        )
    };
    let expected = resume(part::<Stock, R>);
    let found = resume(part::<Released, R>);
    found
        .0
        .assert_same(&expected.0, "release, from stock's checkpoint");
    found
        .1
        .assert_same(&expected.1, "stock, from release's checkpoint");
    let whole = whole(&start);
    let difference = found.1.difference_from(&whole, 2 * EPOCHS * BATCHES);
    assert!(difference.is_some(), "rounding would be noticed");
}

/// A resume that loses the moments would not pass for one.
#[test]
fn losing_the_state_would_be_noticed() {
    let start = Start::new::<Regression>(Size::Small);
    let whole = whole(&start);
    let directory = Directory::temporary();
    let recorder = BinFileRecorder::<FullPrecisionSettings>::default();
    let first = part::<Released, _>(0, &start, &directory, recorder.clone());
    let empty = OptimizerAdaptor::<Adam, ModelOf<Stock, Regression>, Plain>::from(
        AdamConfig::new().build(),
    );
    let file = directory.checkpoint(&format!("optim-{EPOCHS}"));
    burn::record::Recorder::<Plain>::record(&recorder, empty.to_record(), file).expect("written");
    let second = part::<Released, _>(1, &other_start(), &directory, recorder);
    assert!(second.found[0].same(&first.last), "the weights are there");
    let difference = second.found[1].same(&whole.found[EPOCHS * BATCHES + 1]);
    assert!(!difference, "and the moments are not");
}

/// Burn's event store files the first epoch of a resumed run under 1, over what was there.
#[test]
fn a_resumed_epoch_is_logged_under_its_own_number() {
    type R = BinFileRecorder<FullPrecisionSettings>;
    let start = Start::new::<Regression>(Size::Small);
    let whole = whole(&start);
    let directory = Directory::temporary();
    part::<Stock, _>(0, &start, &directory, R::default());
    part::<Released, _>(1, &other_start(), &directory, R::default());
    for epoch in 1..=2 * EPOCHS {
        for metric in ["Loss", "Learning Rate"] {
            let logged = directory.logged(epoch, metric);
            assert_eq!(logged.len(), BATCHES);
            assert_eq!(
                logged,
                whole.directory.logged(epoch, metric),
                "{metric}, {epoch}"
            );
        }
    }
}

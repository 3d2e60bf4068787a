//! A program that cannot be recorded is refused, with an error that says what to do.

use burn_gradient_release_timeline::{
    RecordError, RecordSteps, Recorded, Recorder, Snapshot, forward,
};

use super::turn;
use crate::harness::prelude::*;

type P = Plain<Recorded<Flex>>;
type Model<B> = <Mlp as Scenario>::Model<B>;

fn train<B: AutodiffBackend>(mut optim: impl Optimizer<Model<B>, B>, steps: u64) {
    let start = Start::new::<Mlp>(Size::Small);
    super::train::<Mlp, B, _>(Size::Small, &start, &mut optim, |_, model| model, steps);
}

fn recorded(recorder: Recorder, train: impl FnOnce()) -> Result<Snapshot, RecordError> {
    let recording = recorder.start().expect("no other recording is under way");
    train();
    recording.finish()
}

fn says(error: &RecordError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} should mention {part:?}");
    }
}

#[test]
fn a_second_recording_is_refused() {
    let _turn = turn();
    let first = Recorder::new("first").start().expect("the first one");
    let error = Recorder::new("second").start().expect_err("the second one");
    assert!(matches!(error, RecordError::UnderWay));
    says(&error, &["under way", "finish the other"]);
    drop(first);
    drop(
        Recorder::new("third")
            .start()
            .expect("the first was given up"),
    );
}

#[test]
fn a_training_that_ends_too_soon_is_an_error() {
    let _turn = turn();
    let error = recorded(Recorder::new("short"), || {
        train::<P>(AdamConfig::new().init().recorded(), 2);
    })
    .unwrap_err();
    assert!(matches!(error, RecordError::TooShort { made: 2, first: 2 }));
    says(&error, &["2 forward passes", "forward"]);
}

#[test]
fn a_training_that_ends_early_gives_what_there_is() {
    let _turn = turn();
    let snapshot = recorded(Recorder::new("early").with_steps(1..100), || {
        train::<P>(AdamConfig::new().init().recorded(), 3);
    })
    .expect("two steps were recorded");
    let last = snapshot.phases.last().expect("there are phases");
    assert_eq!(last.iteration, 1);
    assert!(snapshot.warnings.is_empty());
}

/// Drawn before the others, a parameter would take their random numbers.
#[test]
fn a_recording_draws_no_weights() {
    let _turn = turn();
    let model: Linear<P> = LinearConfig::new(4, 2).init(&Default::default());
    let snapshot = recorded(Recorder::new("the first step").with_steps(0..1), || {
        let batch = Tensor::<P, 2>::ones([3, 4], &Default::default());
        let pass = || {
            assert!(!model.weight.is_initialized());
            model.forward(batch)
        };
        drop(forward(&model, pass));
    })
    .expect("a step was recorded");
    let paths = snapshot.parameters.iter().map(|it| it.path.as_str());
    assert!(paths.eq(["weight", "bias"]), "{:?}", snapshot.parameters);
}

#[test]
fn a_backend_that_is_not_recorded_is_an_error() {
    let _turn = turn();
    let error = recorded(Recorder::new("stock"), || {
        train::<Plain<Flex>>(AdamConfig::new().init().recorded(), 4);
    })
    .unwrap_err();
    assert!(matches!(error, RecordError::NotRecorded));
    says(&error, &["Autodiff<Recorded<Flex>>"]);
}

#[test]
fn an_optimizer_that_is_not_recorded_is_a_warning() {
    let _turn = turn();
    let snapshot = recorded(Recorder::new("silent"), || {
        train::<P>(AdamConfig::new().init(), 4);
    })
    .expect("tensors are recorded");
    let [warning] = snapshot.warnings.as_slice() else {
        panic!("{:?}", snapshot.warnings);
    };
    assert!(warning.contains(".recorded()"), "{warning}");
}

#[test]
#[should_panic(expected = "call it on a new optimizer")]
fn an_optimizer_with_states_is_refused() {
    let _turn = turn();
    let mut optim = AdamConfig::new().init::<P, Model<P>>();
    let model = Start::new::<Mlp>(Size::Small).model::<Mlp, P>();
    let grads = gradients(&model, Mlp::loss::<P>(&model, Size::Small, 0));
    optim.step(RATE, model, grads);
    let _ = optim.recorded();
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let _turn = turn();
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("the folder");
    let recorder = || Recorder::new("lost").with_file(folder.join("file.json"));
    let error = recorder().start().expect_err("before any training");
    assert!(matches!(error, RecordError::Save(_)));
    says(&error, &["the folder", "choose a folder that exists"]);

    std::fs::create_dir(&folder).expect("now there is one");
    let error = recorded(recorder(), || {
        train::<P>(AdamConfig::new().init().recorded(), 4);
        std::fs::remove_dir(&folder).expect("the file is written when the recording ends");
    })
    .unwrap_err();
    assert!(matches!(error, RecordError::Save(_)));
    says(&error, &["the folder"]);
}

/// A file is what the steps were recorded for, so one that was written stays.
#[test]
fn a_recording_that_is_dropped_is_discarded() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder for a test");
    let dropped_after = |steps: u64| {
        let file = folder.path().join(format!("{steps}.json"));
        let recording = Recorder::new("dropped").with_file(&file).start();
        let recording = recording.expect("no other recording is under way");
        train::<P>(AdamConfig::new().init().recorded(), steps);
        drop(recording);
        file.exists()
    };
    // The third and the fourth step are to be recorded; the fifth shows that they are over.
    assert!(!dropped_after(3));
    assert!(!dropped_after(4));
    assert!(dropped_after(5));
    // Another one begins from nothing.
    let error = recorded(Recorder::new("next"), || ()).unwrap_err();
    assert!(matches!(error, RecordError::TooShort { made: 0, .. }));
}

//! A checkpoint of either is a checkpoint of the other. (For the recorders of Burn see
//! [`checkpoints`](crate::checkpoints), and the tests of `AtomicFileRecorder` in its crate.)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use burn::record::{HalfPrecisionSettings, NamedMpkFileRecorder};
use burn::train::checkpoint::{CheckpointingStrategy, KeepLastNCheckpoints};
use burn_gradient_release_train::BlockingCheckpointingStrategy;

use crate::harness::learner::*;

/// Burn's event store files the first epoch of a resumed run under 1, over what was there.
#[test]
fn a_resumed_epoch_is_logged_under_its_own_number() {
    let task = Task::new(Net::Chain);
    let whole = train::<Stock>(&task, &Training::new());
    let (stock, released) = (train::<Stock>, train::<Released>);
    let parts: [Part<'_>; 3] = [&stock, &released, &released];
    let run = resumed(&task, &Training::saving(), &parts, &whole);
    for epoch in 1..=3 {
        for metric in ["Loss", "Learning Rate"] {
            let logged = run.directory.logged(epoch, metric);
            assert_eq!(logged.len(), 7);
            let expected = whole.directory.logged(epoch, metric);
            assert_eq!(logged, expected, "{metric}, {epoch}");
        }
    }
}

/// `CompactRecorder`: what it saves is rounded, so that no resume is the run without interruption.
/// Stock resumed from the same files is the reference.
#[test]
fn half_precision_is_resumed_as_stock_resumes_it() {
    type Half = NamedMpkFileRecorder<HalfPrecisionSettings>;
    let task = Task::new(Net::Chain);
    let stock = train_saving::<Stock, Half>;
    let parts = |middle: fn(&Task, &Training, Half) -> Run| {
        let training = Training::new();
        stock(&task, &training.only_epoch(1), Half::default());
        let task = task.with_other_weights();
        let second = middle(&task, &training.only_epoch(2), Half::default());
        [
            second,
            stock(&task, &training.only_epoch(3), Half::default()),
        ]
    };
    let expected = parts(stock);
    let found = parts(train_saving::<Released, Half>);
    found[0].assert_same(&expected[0], "release, from stock's checkpoint");
    found[1].assert_same(&expected[1], "stock, from release's checkpoint");
    let whole = train::<Stock>(&task, &Training::new());
    assert!(
        found[1].difference(&whole, 14).is_some(),
        "rounding would be noticed"
    );
}

/// In how many steps a file was being written, and the folder.
fn steps_while_writing(keep: fn() -> Box<dyn CheckpointingStrategy>) -> (usize, Directory) {
    let (writing, steps) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (is_written, counted) = (writing.clone(), steps.clone());
    // Longer than an epoch.
    let slow = Watched::new(move |_| {
        writing.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(200));
        writing.fetch_sub(1, Ordering::SeqCst);
    });
    let training = Training {
        keep,
        on_step: Arc::new(move |_| {
            let is_writing = is_written.load(Ordering::SeqCst) > 0;
            counted.fetch_add(usize::from(is_writing), Ordering::SeqCst);
        }),
        ..Training::new()
    };
    let run = train_saving::<Released, _>(&Task::new(Net::Chain), &training, slow);
    (steps.load(Ordering::SeqCst), run.directory)
}

#[test]
fn no_step_is_taken_while_a_checkpoint_is_written_if_that_is_asked_for() {
    let (meanwhile, expected) = steps_while_writing(|| Box::new(KeepLastNCheckpoints::new(2)));
    assert!(meanwhile > 0, "Burn goes on");
    let (meanwhile, found) = steps_while_writing(|| {
        Box::new(BlockingCheckpointingStrategy::new(
            KeepLastNCheckpoints::new(2),
        ))
    });
    assert_eq!(meanwhile, 0);
    assert_eq!(found.checkpoints(), expected.checkpoints());
}

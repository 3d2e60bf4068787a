//! Checkpoints are Burn's own: either strategy resumes what the other has saved.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use burn::module::Lora;
use burn::train::checkpoint::{
    Checkpoint, Checkpointer, CheckpointerError, CheckpointingStrategy, FileCheckpointer,
    KeepLastNCheckpoints,
};
use burn_lean::train::{BlockingCheckpointingStrategy, release_learner};

use super::equality::grouped_rates;
use super::harness::{Directory, Mode, Net, OnStep, Training, User, rates};
use crate::harness::prelude::*;

fn adapted(net: Net) -> Net {
    let query = net.query.apply_lora(Lora::new(2, 4.0));
    Net { query, ..net }
}

/// Saved by one, resumed by the other, and on from there to the weights of the run in one piece.
#[test]
fn either_resumes_the_other() {
    use Mode::{Released, Stock, StockWithOurs};
    let pairs = [
        (Stock, Released),
        (Released, Stock),
        (Released, Released),
        (StockWithOurs, Released),
        (Released, StockWithOurs),
    ];
    let in_windows = Training {
        model: adapted(Net::new(&flex())),
        accumulation: Some(3),
        scheduler: grouped_rates,
        ..Training::new(adamw)
    };
    let trainings = [
        ("each step", Training::new(adamw)),
        ("windows, rates of groups and an adapter", in_windows),
    ];
    for (what, training) in trainings {
        let whole = Training {
            epochs: 4,
            shuffle: Some(7),
            ..training
        };
        let expected = whole.run(Stock);
        for (first, second) in pairs {
            let what = format!("{what}, {first:?}, then {second:?}");
            let begun = Training {
                epochs: 2,
                saves: true,
                directory: Directory::temporary(),
                ..whole.clone()
            };
            begun.run(first);
            // What it begins with is not what it goes on with.
            let model = Net::new(&flex());
            let resumed = Training {
                epochs: 4,
                checkpoint: Some(2),
                model: match whole.model.query.weight.adapter() {
                    Some(_) => adapted(model),
                    None => model,
                },
                ..begun
            };
            let resumed = resumed.run(second);
            let done = expected.losses.len() - resumed.losses.len();
            assert_eq!(done, expected.losses.len() / 2, "{what}");
            assert_eq!(resumed.losses, expected.losses[done..], "{what}");
            assert_bits(&resumed.last, &expected.last, &what);
        }
    }
}

/// Takes its time to write.
struct Slow {
    files: FileCheckpointer,
    writing: Arc<AtomicUsize>,
    deleted: Arc<Mutex<Vec<usize>>>,
}

impl<R: Checkpoint> Checkpointer<R> for Slow {
    fn save(&self, epoch: usize, record: R) -> Result<(), CheckpointerError> {
        self.writing.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(300));
        let saved = self.files.save(epoch, record);
        self.writing.fetch_sub(1, Ordering::SeqCst);
        saved
    }

    fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
        self.deleted.lock().unwrap().push(epoch);
        Checkpointer::<R>::delete(&self.files, epoch)
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        self.files.restore(epoch)
    }
}

/// The number of steps that were taken while a checkpoint was written, the files, and the epochs whose
/// optimizer was deleted.
fn steps_while_writing(
    strategy: impl CheckpointingStrategy + 'static,
) -> (usize, Vec<String>, Vec<usize>) {
    let writing = Arc::new(AtomicUsize::new(0));
    let meanwhile = Arc::new(AtomicUsize::new(0));
    let (seen, counted) = (writing.clone(), meanwhile.clone());
    let on_step = OnStep(Arc::new(move |_| {
        let is_writing = seen.load(Ordering::SeqCst) > 0;
        counted.fetch_add(usize::from(is_writing), Ordering::SeqCst);
    }));
    let training = Training::of_user(User {
        on_step,
        ..User::default()
    });
    let folder = training.directory.path().join("checkpoint");
    let slow = |part| Slow {
        files: FileCheckpointer::new(&folder, part),
        writing: writing.clone(),
        deleted: Arc::default(),
    };
    let optim = slow("optim");
    let deleted = optim.deleted.clone();
    let supervised = training
        .supervised(Mode::Released)
        .with_custom_checkpointers(slow("model"), optim, slow("scheduler"))
        .with_checkpointing_strategy(strategy);
    supervised.launch(release_learner(training.model.clone(), adamw(), rates()));
    let meanwhile = meanwhile.load(Ordering::SeqCst);
    let deleted = std::mem::take(&mut *deleted.lock().unwrap());
    (meanwhile, training.directory.checkpoints(), deleted)
}

#[test]
fn training_waits_for_checkpoints_if_asked() {
    let (meanwhile, expected, deleted) = steps_while_writing(KeepLastNCheckpoints::new(2));
    assert!(meanwhile > 0, "Burn goes on");
    assert_eq!(deleted, [1]);
    let blocking = BlockingCheckpointingStrategy::new(KeepLastNCheckpoints::new(2));
    let (meanwhile, found, deleted) = steps_while_writing(blocking);
    assert_eq!(meanwhile, 0);
    assert_eq!(found, expected);
    // Where it has to wait for something.
    let no_epoch = 0;
    assert_eq!(deleted, [no_epoch, no_epoch, 1]);
}

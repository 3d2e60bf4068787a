//! Where a run is picked up: not at what a killed save has left, what the disk has changed since, or
//! what another run has saved.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::LrSchedulerRecord;
use burn::store::RecordError;
use burn::tensor::Bytes;
use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError};
use burn_lean::train::release_learner;
use burn_lean::train::resume::{
    CheckedFileCheckpointer, ResumedDataLoader, resume_point, resume_point_of_run,
};

use super::harness::{Directory, Mode, Training, rates};
use crate::harness::prelude::*;

const RUN: &str = "seed: 42";

/// Two epochs with their checkpoints.
fn trained(mode: Mode) -> Training {
    let training = Training {
        epochs: 2,
        saves: true,
        of_run: Some(RUN),
        ..Training::new(adamw)
    };
    training.run(mode);
    training
}

fn flip_a_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Why a checkpoint is not loaded.
fn refusal<R: Checkpoint>(directory: &Directory, part: &str, epoch: usize) -> Option<String> {
    let folder = directory.path().join("checkpoint");
    let checkpointer = CheckedFileCheckpointer::new(folder, part).of_run(RUN);
    let restored: Result<R, _> = checkpointer.restore(epoch);
    restored.err().map(|error| error.to_string())
}

fn refusals(directory: &Directory, epoch: usize) -> [Option<String>; 3] {
    [
        refusal::<ModuleRecord>(directory, "model", epoch),
        refusal::<OptimizerRecord>(directory, "optim", epoch),
        refusal::<LrSchedulerRecord>(directory, "scheduler", epoch),
    ]
}

fn text(found: io::Result<Option<usize>>) -> String {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    error.to_string()
}

#[test]
fn a_flipped_bit_is_refused() {
    const CHANGED: &str = "is not as it was saved";
    let run = trained(Mode::Released);
    let directory = &run.directory;
    for (place, part) in ["model", "optim", "scheduler"].into_iter().enumerate() {
        let name = format!("{part}-2.bpk");
        let file = directory.checkpoint(&name);
        let whole = fs::read(&file).unwrap();
        flip_a_bit(&file);
        let found = text(resume_point(directory.path()));
        assert!(found.contains(&name) && found.contains(CHANGED), "{found}");
        for (other, refusal) in refusals(directory, 2).into_iter().enumerate() {
            let is_refused = refusal.is_some_and(|text| text.contains(CHANGED));
            assert_eq!(is_refused, other == place, "{part}");
        }
        fs::write(&file, whole).unwrap();
    }
    assert_eq!(resume_point(directory.path()).unwrap(), Some(2));
}

#[test]
fn a_learner_does_not_train_on_a_flipped_bit() {
    for mode in [Mode::Stock, Mode::Released] {
        let run = trained(mode);
        flip_a_bit(&run.directory.checkpoint("model-2.bpk"));
        let resumed = Training {
            epochs: 3,
            checkpoint: Some(2),
            ..run
        };
        assert!(panic_of(|| resumed.run(mode)).is_err(), "{mode:?}");
    }
}

/// Nothing panics: who has launched the training has to look.
#[test]
fn a_checkpoint_that_cannot_be_written_is_an_error_of_the_result() {
    let training = Training {
        epochs: 1,
        saves: true,
        of_run: Some(RUN),
        ..Training::new(adamw)
    };
    fs::write(training.directory.path().join("checkpoint"), "a file").unwrap();
    let learner = release_learner(training.model.clone(), adamw(), rates());
    let result = training.supervised(Mode::Released).launch(learner);
    assert!(result.error.is_some());
}

/// A checksum says so, which is deleted with its file.
#[test]
fn what_another_run_has_saved_is_refused() {
    let run = trained(Mode::Released);
    let path = run.directory.path();
    assert_eq!(resume_point_of_run(path, RUN).unwrap(), Some(2));
    let found = text(resume_point_of_run(path, "seed: 43"));
    assert!(found.contains("by a run with other settings"), "{found}");
    assert!(refusals(&run.directory, 2).iter().all(Option::is_none));
    let files = run.directory.checkpoints();
    assert_eq!(files.len(), 2 * 3 * 2, "{files:?}");

    let checkpointer = CheckedFileCheckpointer::new(path.join("checkpoint"), "model");
    Checkpointer::<ModuleRecord>::delete(&checkpointer, 2).unwrap();
    let files = run.directory.checkpoints();
    assert!(!files.iter().any(|file| file.starts_with("model-2")));
}

/// A record for which there is no room.
struct TooLarge;

impl Checkpoint for TooLarge {
    fn save(self, file: PathBuf) -> Result<(), CheckpointerError> {
        fs::write(file, "as far as it goes").unwrap();
        Err(CheckpointerError::IOError(ErrorKind::StorageFull.into()))
    }

    fn load(_: PathBuf) -> Result<Self, CheckpointerError> {
        unreachable!("it is only saved")
    }

    fn checkpoint_from_bytes(_: Bytes) -> Result<Self, RecordError> {
        unreachable!("it is only saved")
    }

    fn checkpoint_into_bytes(self) -> Result<Bytes, RecordError> {
        unreachable!("it is only saved")
    }
}

/// A run in the folder of another one that cannot save does not make the checkpoint there its own.
#[test]
fn what_cannot_be_replaced_stays_as_it_was() {
    let run = trained(Mode::Released);
    let folder = run.directory.path().join("checkpoint");
    let before = run.directory.checkpoints();
    for part in ["model", "optim", "scheduler"] {
        let other = CheckedFileCheckpointer::new(&folder, part).of_run("seed: 43");
        let error = other.save(2, TooLarge).unwrap_err();
        assert!(matches!(error, CheckpointerError::IOError(_)), "{error}");
    }
    assert_eq!(run.directory.checkpoints(), before);
    assert_eq!(refusals(&run.directory, 2), [None, None, None]);
    let found = text(resume_point_of_run(run.directory.path(), "seed: 43"));
    assert!(found.contains("by a run with other settings"), "{found}");
}

/// Batches that are the numbers of their items, and their count.
struct Counted(Arc<AtomicUsize>);

impl Batcher<u32, Vec<u32>> for Counted {
    fn batch(&self, items: Vec<u32>, _: &Device) -> Vec<u32> {
        self.0.fetch_add(1, Ordering::Relaxed);
        items
    }
}

/// A worker shuffles on its own thread, and may make batches that nobody takes.
#[test]
fn an_epoch_has_the_order_of_the_uninterrupted_run_and_no_other_batches() {
    const EPOCHS: usize = 4;
    let made = Arc::new(AtomicUsize::new(0));
    let loader = |workers| {
        let builder = DataLoaderBuilder::new(Counted(made.clone())).batch_size(4);
        let items = InMemDataset::new((0..23).collect());
        builder.shuffle(42).num_workers(workers).build(items)
    };
    let epoch = |loader: &dyn DataLoader<Vec<u32>>| -> Vec<Vec<u32>> {
        loader.iter().map(Result::unwrap).collect()
    };
    for workers in [0, 1] {
        let whole = loader(workers);
        let whole = [(); EPOCHS].map(|()| epoch(&*whole));
        for first in 1..=EPOCHS {
            let resumed = ResumedDataLoader::new(loader(workers), first);
            let before = made.load(Ordering::Relaxed);
            for expected in &whole[first - 1..] {
                assert_eq!(epoch(&*resumed), *expected, "resumed at epoch {first}");
            }
            let made = made.load(Ordering::Relaxed) - before;
            assert!(workers > 0 || made == 6 * (EPOCHS + 1 - first), "{made}");
        }
    }
}

//! Checkpoints that are written before training goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use burn::optim::AdamConfig;
use burn::record::{FileRecorder, FullPrecisionSettings, Record, Recorder, RecorderError};
use burn::tensor::backend::Backend;
use burn::train::checkpoint::{CheckpointingStrategy, KeepLastNCheckpoints};
use burn_gradient_release_train::BlockingCheckpointingStrategy;
use serde::{Serialize, de::DeserializeOwned};

use super::rates;
use crate::harness::learner::{Bin, Released, Training, train};
use crate::harness::models::{Regression, Size};
use crate::harness::run::Start;

/// Files that are being written.
static WRITING: AtomicUsize = AtomicUsize::new(0);

/// Takes longer than an epoch of these tests.
#[derive(Clone, Debug, Default)]
struct Slow(Bin);

impl<B: Backend> Recorder<B> for Slow {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn record<R: Record<B>>(&self, record: R, file: PathBuf) -> Result<(), RecorderError> {
        WRITING.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(200));
        let result = Recorder::<B>::record(&self.0, record, file);
        WRITING.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        Recorder::<B>::save_item(&self.0, item, file)
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        Recorder::<B>::load_item(&self.0, file)
    }
}

impl<B: Backend> FileRecorder<B> for Slow {
    fn file_extension() -> &'static str {
        <Bin as FileRecorder<B>>::file_extension()
    }
}

/// In how many steps a file was being written, and the files that are left.
fn steps_while_writing(keep: fn() -> Box<dyn CheckpointingStrategy>) -> (usize, Vec<String>) {
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let training = Training {
        keep,
        on_step: Arc::new(move |_| {
            let is_writing = WRITING.load(Ordering::SeqCst) > 0;
            counted.fetch_add(usize::from(is_writing), Ordering::SeqCst);
        }),
        ..Training::new()
    }
    .saving_with(Slow::default());
    let start = Start::new::<Regression>(Size::Small);
    train::<Released, Regression, _, _, _>(&start, &AdamConfig::new(), rates(), &training);
    let folder = training.directory.path().join("checkpoint");
    let files = std::fs::read_dir(folder).expect("checkpoints were saved");
    let mut files: Vec<_> = files
        .map(|file| file.expect("readable").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    files.sort();
    (steps.load(Ordering::SeqCst), files)
}

#[test]
fn no_step_is_taken_while_a_checkpoint_is_written() {
    let (meanwhile, expected) = steps_while_writing(|| Box::new(KeepLastNCheckpoints::new(2)));
    assert!(meanwhile > 0, "Burn goes on");
    let (meanwhile, files) = steps_while_writing(|| {
        Box::new(BlockingCheckpointingStrategy::new(
            KeepLastNCheckpoints::new(2),
        ))
    });
    assert_eq!(meanwhile, 0);
    assert_eq!(files, expected);
}

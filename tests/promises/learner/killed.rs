//! A run killed at any point is picked up where its last whole checkpoint is, and ends with the
//! weights of the run that nobody killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::backend::Flex;
use burn::optim::AdamConfig;
use burn::record::{FileRecorder, FullPrecisionSettings, Record, Recorder, RecorderError};
use burn::tensor::backend::Backend;
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn_gradient_release_train::resume::{AtomicFileRecorder, resume_point};
use serde::{Serialize, de::DeserializeOwned};

use super::{full_name, rates};
use crate::harness::learner::{Bin, Directory, Mode, Released, Run, Stock, Training, train};
use crate::harness::models::{Regression, Size};
use crate::harness::process::{kill_at_stop, stop, victim, wait_for};
use crate::harness::run::Start;

const EPOCHS: usize = 5;
const BATCHES: usize = 7;
/// Files of a checkpoint.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// Shuffled: a resumed run has to see the batches in the order of the epoch it resumes at.
fn training(directory: Directory) -> Training {
    Training {
        directory,
        epochs: EPOCHS,
        batches: BATCHES,
        shuffle: Some(11),
        ..Training::new()
    }
}

fn run<D: Mode, F>(start: &Start, training: &Training<F>) -> Run
where
    F: FileRecorder<D::B> + FileRecorder<Flex> + 'static,
{
    train::<D, Regression, _, _, _>(start, &AdamConfig::new(), rates(), training)
}

/// When the victim dies.
#[derive(Clone, Copy)]
enum Moment {
    /// Before this step of the run, counted from 0; every checkpoint until then is written.
    Step(usize),
    /// Half way through the file of this part in this epoch; the other parts are written.
    Write(&'static str, usize),
}

/// Writes half of one file and stops there.
#[derive(Clone, Debug, Default)]
struct Interrupted {
    recorder: Bin,
    directory: PathBuf,
    part: &'static str,
    epoch: usize,
}

impl Interrupted {
    fn stop_at(&self, file: &Path) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with(&format!("{}-{}", self.part, self.epoch)) {
            return;
        }
        let written = fs::File::options()
            .write(true)
            .open(file.with_extension("bin"));
        let written = written.expect("just written");
        let length = written.metadata().expect("a file").len();
        written.set_len(length / 2).expect("writable");
        let directory = Directory::at(&self.directory);
        for part in PARTS.iter().filter(|part| **part != self.part) {
            wait_for(&directory.checkpoint(&format!("{part}-{}.bin", self.epoch)));
        }
        stop(&self.directory)
    }
}

impl<B: Backend> Recorder<B> for Interrupted {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn record<R: Record<B>>(&self, record: R, file: PathBuf) -> Result<(), RecorderError> {
        self.recorder.record(record, file.clone())?;
        self.stop_at(&file);
        Ok(())
    }

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        Recorder::<B>::save_item(&self.recorder, item, file)
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        Recorder::<B>::load_item(&self.recorder, file)
    }
}

impl<B: Backend> FileRecorder<B> for Interrupted {
    fn file_extension() -> &'static str {
        <Bin as FileRecorder<B>>::file_extension()
    }
}

/// The process that is killed.
fn die<A: Mode>(directory: &Path, moment: Moment, atomic: bool) -> ! {
    let bytes = fs::read(directory.join("start")).expect("left by the parent");
    let start = Start::from_bytes(Size::Small, bytes);
    let mut training = training(Directory::at(directory));
    let mut recorder = Interrupted {
        directory: directory.to_path_buf(),
        ..Interrupted::default()
    };
    match moment {
        Moment::Step(last) => {
            let directory = training.directory.clone();
            training.on_step = Arc::new(move |step| {
                if step < last {
                    return;
                }
                for part in PARTS.iter().filter(|_| last >= BATCHES) {
                    wait_for(&directory.checkpoint(&format!("{part}-{}.bin", last / BATCHES)));
                }
                stop(directory.path())
            });
        }
        Moment::Write(part, epoch) => (recorder.part, recorder.epoch) = (part, epoch),
    }
    if atomic {
        let recorder = AtomicFileRecorder::new(recorder);
        run::<A, _>(&start, &training.saving_with(recorder));
    } else {
        run::<A, _>(&start, &training.saving_with(recorder));
    }
    panic!("the run came to its end alive");
}

/// A directory in which `A` was killed at that moment, and the weights it began with.
fn killed<A: Mode>(test: &str, moment: Moment, atomic: bool) -> (Directory, Start) {
    if let Some(directory) = victim() {
        die::<A>(&directory, moment, atomic);
    }
    let start = Start::new::<Regression>(Size::Small);
    let directory = Directory::temporary();
    fs::write(directory.path().join("start"), start.bytes()).expect("writable");
    kill_at_stop(&full_name(module_path!(), test), directory.path());
    (directory, start)
}

/// Burn removes the files of old checkpoints, and the next save their checksums: killed in between,
/// those are left.
fn without_orphans(files: Vec<String>) -> Vec<String> {
    let of_a_file = |name: &&String| match name.strip_suffix(".sha256") {
        Some(file) => files.iter().any(|other| other == file),
        None => true,
    };
    files.iter().filter(of_a_file).cloned().collect()
}

/// `A` is killed, `B` resumes.
fn survives<A: Mode, B: Mode>(test: &str, moment: Moment) {
    let (directory, start) = killed::<A>(test, moment, true);
    let expected = run::<Stock, _>(&start, &training(Directory::temporary()));
    expected.assert_trained();

    let before = directory.checkpoints();
    let epoch = resume_point(directory.path()).expect("readable");
    let after = directory.checkpoints();
    match moment {
        Moment::Step(step) => {
            assert_eq!(epoch.unwrap_or(0), step / BATCHES);
            let kept = without_orphans(before);
            assert_eq!(after, kept, "nothing was half done");
        }
        Moment::Write(part, torn) => {
            assert_eq!(epoch, Some(torn - 1));
            assert!(before.contains(&format!("unfinished-{part}-{torn}.bin")));
            let torn = format!("-{torn}.bin");
            assert_eq!(
                before.iter().filter(|file| file.ends_with(&torn)).count(),
                3
            );
            assert_eq!(after.iter().filter(|file| file.ends_with(&torn)).count(), 0);
        }
    }
    let resumed = Training {
        checkpoint: epoch,
        ..training(directory).saving_with(AtomicFileRecorder::new(Bin::default()))
    };
    // A run that has no checkpoint begins anew, as its first weights say.
    let start = match epoch {
        Some(_) => Start::seeded::<Regression>(Size::Small, 1),
        None => start,
    };
    let run = run::<B, _>(&start, &resumed);
    let difference = run.difference_from(&expected, epoch.unwrap_or(0) * BATCHES);
    assert_eq!(difference, None);
}

/// A test per moment and pair of modes.
macro_rules! survives {
    ($($name:ident: $a:ty, $b:ty, $moment:expr;)*) => {
        $(
            #[test]
            fn $name() {
                survives::<$a, $b>(stringify!($name), $moment);
            }
        )*
    };
}

survives! {
    in_the_first_epoch: Released, Released, Moment::Step(3);
    in_the_middle_of_an_epoch: Released, Released, Moment::Step(3 * BATCHES + 4);
    in_the_middle_of_an_epoch_of_stock: Stock, Released, Moment::Step(2 * BATCHES + 1);
    in_the_middle_of_an_epoch_before_stock: Released, Stock, Moment::Step(2 * BATCHES + 6);
    while_the_model_is_written: Released, Released, Moment::Write("model", 3);
    while_the_optimizer_is_written: Released, Released, Moment::Write("optim", 3);
    while_the_scheduler_is_written: Released, Released, Moment::Write("scheduler", 2);
    while_stock_writes: Stock, Released, Moment::Write("optim", 3);
    while_writing_before_stock: Released, Stock, Moment::Write("model", 3);
}

/// What the rename is for: half a file under its own name passes for a checkpoint.
#[test]
fn half_a_file_would_pass_for_a_whole_one() {
    let moment = Moment::Write("optim", 3);
    let (directory, start) =
        killed::<Released>("half_a_file_would_pass_for_a_whole_one", moment, false);
    assert_eq!(resume_point(directory.path()).expect("readable"), Some(3));
    let resumed = Training {
        checkpoint: Some(3),
        ..training(directory).saving_with(Bin::default())
    };
    let said = super::refusal(|| run::<Released, _>(&start, &resumed));
    assert!(said.contains("Can load optimizer checkpoint"), "{said}");
}

/// What [`ResumedDataLoader`](burn_gradient_release_train::resume::ResumedDataLoader) is for:
/// Burn's own loader begins with the order of epoch 1 again.
#[test]
fn the_order_of_the_first_epoch_would_be_noticed() {
    let start = Start::new::<Regression>(Size::Small);
    let expected = run::<Stock, _>(&start, &training(Directory::temporary()));
    let directory = Directory::temporary();
    let saving = Training {
        keep: || Box::new(KeepLastNCheckpoints::new(EPOCHS)),
        ..training(directory).saving_with(Bin::default())
    };
    run::<Stock, _>(
        &start,
        &Training {
            epochs: 2,
            ..saving.clone()
        },
    );
    let resumed = |skips_epochs| Training {
        checkpoint: Some(2),
        skips_epochs,
        ..saving.clone()
    };
    let ours = run::<Stock, _>(&start, &resumed(true));
    assert_eq!(ours.difference_from(&expected, 2 * BATCHES), None);
    let burns = run::<Stock, _>(&start, &resumed(false));
    let difference = burns.difference_from(&expected, 2 * BATCHES);
    assert_eq!(
        difference.as_deref(),
        Some("weights differ before training step 1")
    );
}

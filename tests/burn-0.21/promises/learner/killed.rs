//! A run killed at any point is picked up where its last whole checkpoint is, and ends with the
//! weights of the run that nobody killed.

use std::fs;
use std::path::Path;
use std::process::abort;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn_gradient_release_train::resume::{AtomicFileRecorder, resume_point};

use crate::harness::learner::*;
use crate::harness::process::{name_of, only};

/// Set in the process that is killed: the directory it works in.
const VICTIM: &str = "PROMISES_VICTIM";

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

#[derive(Clone, Copy, Debug)]
enum Who {
    Stock,
    Release,
}

impl Who {
    /// Trains with files that are whole or not there, as this recorder writes them.
    fn train(self, task: &Task, training: &Training, recorder: Watched) -> Run {
        let recorder = AtomicFileRecorder::new(recorder);
        match self {
            Self::Stock => train_saving::<Stock, _>(task, training, recorder),
            Self::Release => train_saving::<Released, _>(task, training, recorder),
        }
    }
}

/// When the victim dies.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before this step of the run, counted from 0; every checkpoint until then is written.
    Step(usize),
    /// Half way through the file of this part in this epoch; the other parts are written.
    Write(&'static str, usize),
}

/// Who dies, when, and who resumes.
const ROWS: [(Who, Moment, Who); 6] = [
    (Who::Release, Moment::Step(3), Who::Release),
    (Who::Stock, Moment::Step(2 * BATCHES + 1), Who::Release),
    (Who::Release, Moment::Step(3 * BATCHES + 6), Who::Stock),
    (Who::Release, Moment::Write("model", 3), Who::Stock),
    (Who::Stock, Moment::Write("optim", 3), Who::Release),
    (Who::Release, Moment::Write("scheduler", 2), Who::Release),
];

/// Waits for the files of a checkpoint but one, which other threads write.
fn wait_for_parts(directory: &Path, epoch: usize, but: &str) {
    let begun = Instant::now();
    for part in PARTS.iter().filter(|part| **part != but) {
        let file = Directory::at(directory).checkpoint(&format!("{part}-{epoch}.bin"));
        while !file.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{file:?}");
            sleep(Duration::from_millis(2));
        }
    }
}

/// A recorder that writes half of this file and dies there.
fn interrupted(directory: &Path, part: &'static str, epoch: usize) -> Watched {
    let directory = directory.to_path_buf();
    Watched::new(move |file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(&format!("{part}-{epoch}")) {
            let file = fs::File::options()
                .write(true)
                .open(file.with_extension("bin"));
            let file = file.expect("just written");
            let length = file.metadata().expect("a file").len();
            file.set_len(length / 2).expect("writable");
            wait_for_parts(&directory, epoch, part);
            abort()
        }
    })
}

/// A file that the parent has left for the process that is killed.
fn left(directory: &Path, file: &str) -> Vec<u8> {
    fs::read(directory.join(file)).expect("left by the parent")
}

/// The process that is killed: it ends on the spot, and nothing is flushed or dropped.
fn die(directory: &Path) -> ! {
    let task = Task::from_weights(left(directory, "start"));
    let (who, moment, _) = ROWS[usize::from(left(directory, "row")[0])];
    let mut training = training(Directory::at(directory));
    match moment {
        Moment::Step(last) => {
            let directory = directory.to_path_buf();
            training.on_step = Arc::new(move |step| {
                if step == last {
                    if last >= BATCHES {
                        wait_for_parts(&directory, last / BATCHES, "none");
                    }
                    abort()
                }
            });
            who.train(&task, &training, Watched::default());
        }
        Moment::Write(part, epoch) => {
            who.train(&task, &training, interrupted(directory, part, epoch));
        }
    }
    panic!("the run came to its end alive");
}

/// A directory in which the run of a row was killed.
fn killed(task: &Task, row: usize) -> Directory {
    let directory = Directory::temporary();
    for (file, bytes) in [("start", task.weights()), ("row", &[row as u8])] {
        fs::write(directory.path().join(file), bytes).expect("writable");
    }
    let test = name_of(&the_run_that_resumes_ends_with_the_same_weights);
    let output = only(test).env(VICTIM, directory.path()).output();
    let output = output.expect("a test can be run again");
    let said = String::from_utf8_lossy(&output.stdout);
    // Neither passed nor failed.
    assert!(!matches!(output.status.code(), Some(0 | 101)), "{said}");
    directory
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

#[test]
fn the_run_that_resumes_ends_with_the_same_weights() {
    if let Some(directory) = std::env::var_os(VICTIM) {
        die(Path::new(&directory));
    }
    let task = Task::new(Net::Chain);
    let expected = train::<Stock>(&task, &training(Directory::temporary()));
    expected.assert_trained();
    for (row, (dies, moment, resumes)) in ROWS.into_iter().enumerate() {
        let context = format!("{dies:?} is killed at {moment:?}, {resumes:?} resumes");
        let directory = killed(&task, row);
        let before = directory.checkpoints();
        let epoch = resume_point(directory.path()).expect("readable");
        let after = directory.checkpoints();
        let done = match moment {
            Moment::Step(step) => {
                assert_eq!(
                    after,
                    without_orphans(before),
                    "{context}: nothing was half done"
                );
                step / BATCHES
            }
            Moment::Write(part, torn) => {
                let unfinished = format!("unfinished-{part}-{torn}.bin");
                assert!(before.contains(&unfinished), "{context}");
                let of_torn = |files: &[String]| {
                    let end = format!("-{torn}.bin");
                    files.iter().filter(|file| file.ends_with(&end)).count()
                };
                assert_eq!((of_torn(&before), of_torn(&after)), (3, 0), "{context}");
                torn - 1
            }
        };
        assert_eq!(epoch.unwrap_or(0), done, "{context}");

        let resumed = Training {
            checkpoint: epoch,
            ..training(directory)
        };
        // A run that has no checkpoint begins anew, as its first weights say.
        let first = match epoch {
            Some(_) => task.with_other_weights(),
            None => task.clone(),
        };
        let run = resumes.train(&first, &resumed, Watched::default());
        assert_eq!(run.found.len(), (EPOCHS - done) * BATCHES, "{context}");
        assert_eq!(run.difference(&expected, done * BATCHES), None, "{context}");
    }
}

//! A run killed at any point is picked up where its last whole checkpoint is, and ends with the
//! weights of the run that nobody killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_lean::train::resume::resume_point;

use super::harness::{BATCHES, Directory, Mode, Net, OnStep, Training};
use crate::harness::{adamw, flex};

const EPOCHS: usize = 5;
/// Training and validation steps of an epoch.
const STEPS: usize = BATCHES + 2;

fn training(directory: Directory) -> Training {
    Training {
        epochs: EPOCHS,
        shuffle: Some(11),
        saves: true,
        accumulation: Some(2),
        directory,
        model: Net::without_third_use(&flex()),
        ..Training::new(adamw)
    }
}

/// When the victim dies.
enum Moment {
    /// At this step, counted from 0.
    Step(usize),
    /// As soon as there is a file whose name begins so.
    File(&'static str),
}

/// In the process that is to be killed: the folder to work in, and the step to wait at.
const FOLDER: &str = "BURN_LEAN_TEST_KILLED_IN";
const STEP: &str = "BURN_LEAN_TEST_KILLED_AT";

fn waiting(folder: &Path) -> PathBuf {
    folder.join("waiting")
}

/// The process that is killed.
fn die(mode: Mode, folder: &Path) -> ! {
    let step: Option<usize> = std::env::var(STEP).ok().map(|step| step.parse().unwrap());
    let mut training = training(Directory::at(folder));
    let signal = waiting(folder);
    training.model.user.on_step = OnStep(Arc::new(move |now| {
        // The writing is to be seen.
        std::thread::sleep(Duration::from_millis(1));
        if Some(now) == step {
            std::fs::write(&signal, "").unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
    }));
    training.run(mode);
    // Whoever waits for a file may have missed it.
    std::process::exit(0)
}

fn kill(test: &str, folder: &Path, moment: &Moment) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(std::process::Stdio::null());
    if let Moment::Step(step) = moment {
        command.env(STEP, step.to_string());
    }
    let mut child: Child = command.spawn().unwrap();
    let begun = Instant::now();
    let has_come = || match moment {
        Moment::Step(_) => waiting(folder).exists(),
        Moment::File(file) => {
            let entries = std::fs::read_dir(folder.join("checkpoint"));
            entries.is_ok_and(|mut entries| {
                entries.any(|entry| {
                    let name = entry.unwrap().file_name();
                    name.to_string_lossy().starts_with(file)
                })
            })
        }
    };
    while !has_come() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it was killed"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "it never came so far"
        );
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed");
}

fn survives(test: &str, first: Mode, second: Mode, moment: Moment) {
    let test = format!("train::killed::{test}");
    if let Some(folder) = std::env::var_os(FOLDER) {
        die(first, Path::new(&folder));
    }
    let directory = Directory::temporary();
    kill(&test, directory.path(), &moment);
    let epoch = resume_point(directory.path()).unwrap();
    let names = directory.checkpoints();
    assert!(names.iter().all(|name| name.ends_with(".bpk")), "{names:?}");
    assert_eq!(names.len() % 3, 0, "{names:?}");
    match moment {
        // What an epoch has saved may still be on its way.
        Moment::Step(step) => {
            let before = step / STEPS;
            let found = epoch.unwrap_or(0);
            assert!(
                (before.saturating_sub(1)..=before).contains(&found),
                "{found}"
            );
        }
        Moment::File(_) => {}
    }
    let whole = training(Directory::temporary());
    let expected = whole.run(Mode::Stock);
    let resumed = Training {
        checkpoint: epoch,
        ..training(directory)
    };
    let run = resumed.run(second);
    let done = epoch.unwrap_or(0) * STEPS;
    assert_eq!(run.losses, expected.losses[done..]);
    assert_eq!(run.last, expected.last);
}

macro_rules! survives {
    ($($name:ident: $first:ident, $second:ident, $moment:expr;)*) => {
        $(
            #[test]
            fn $name() {
                survives(stringify!($name), Mode::$first, Mode::$second, $moment);
            }
        )*
    };
}

survives! {
    in_the_first_epoch: Released, Released, Moment::Step(3);
    in_the_middle_of_an_epoch: Released, Released, Moment::Step(3 * STEPS + 4);
    in_the_middle_of_an_epoch_of_stock: Stock, Released, Moment::Step(2 * STEPS + 1);
    in_the_middle_of_an_epoch_before_stock: Released, Stock, Moment::Step(2 * STEPS + 6);
    while_the_model_is_written: Released, Released, Moment::File("model-2.bpk");
    while_the_optimizer_is_written: Released, Released, Moment::File("optim-3.bpk");
    while_the_scheduler_is_written: Released, Stock, Moment::File("scheduler-3.bpk");
}

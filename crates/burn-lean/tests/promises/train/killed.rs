//! A run killed at any point is picked up where its last whole checkpoint is, and ends with the
//! weights of the run that nobody killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_lean::train::resume::resume_point;

use super::harness::{BATCHES, Directory, Mode, OnStep, Run, Training};
use crate::harness::prelude::*;

const TEST: &str = "train::killed::a_killed_run_is_picked_up";
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
        ..Training::new(adamw)
    }
}

/// When the victim dies.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// At this step, counted from 0.
    Step(usize),
    /// As soon as there is a file whose name begins so.
    File(&'static str),
}

/// In the process that is to be killed: the folder to work in, whether it trains with release, and
/// the step to wait at.
const FOLDER: &str = "BURN_LEAN_TEST_KILLED_IN";
const IS_RELEASED: &str = "BURN_LEAN_TEST_KILLED_RELEASED";
const STEP: &str = "BURN_LEAN_TEST_KILLED_AT";

fn waiting(folder: &Path) -> PathBuf {
    folder.join("waiting")
}

/// The process that is killed.
fn die(folder: &Path) -> ! {
    let step: Option<usize> = std::env::var(STEP).ok().map(|step| step.parse().unwrap());
    let mode = match std::env::var(IS_RELEASED).unwrap() == "true" {
        true => Mode::Released,
        false => Mode::Stock,
    };
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

fn kill(mode: Mode, folder: &Path, moment: Moment) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(IS_RELEASED, (mode == Mode::Released).to_string())
        .stdout(Stdio::null());
    if let Moment::Step(step) = moment {
        command.env(STEP, step.to_string());
    }
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let has_come = || match moment {
        Moment::Step(_) => waiting(folder).exists(),
        Moment::File(file) => {
            let entries = std::fs::read_dir(folder.join("checkpoint"));
            let mut entries = entries.into_iter().flatten();
            entries.any(|entry| {
                let name = entry.unwrap().file_name();
                name.to_string_lossy().starts_with(file)
            })
        }
    };
    while !has_come() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{moment:?}: it ended before it was killed");
        let is_late = begun.elapsed() > Duration::from_secs(120);
        assert!(!is_late, "{moment:?}: it never came so far");
    }
    child.kill().unwrap();
    assert!(
        !child.wait().unwrap().success(),
        "{moment:?}: it was killed"
    );
}

fn survives(first: Mode, second: Mode, moment: Moment, expected: &Run) {
    let what = format!("{first:?}, {moment:?}, then {second:?}");
    let directory = Directory::temporary();
    kill(first, directory.path(), moment);
    let epoch = resume_point(directory.path()).unwrap();
    let names = directory.checkpoints();
    let are_whole = names.iter().all(|name| name.ends_with(".bpk"));
    assert!(
        are_whole && names.len().is_multiple_of(3),
        "{what}: {names:?}"
    );
    if let Moment::Step(step) = moment {
        // What an epoch has saved may still be on its way.
        let before = step / STEPS;
        let possible = before.saturating_sub(1)..=before;
        assert!(possible.contains(&epoch.unwrap_or(0)), "{what}: {epoch:?}");
    }
    let resumed = Training {
        checkpoint: epoch,
        ..training(directory)
    };
    let run = resumed.run(second);
    let done = epoch.unwrap_or(0) * STEPS;
    assert_eq!(run.losses, expected.losses[done..], "{what}");
    assert_bits(&run.last, &expected.last, &what);
}

#[test]
fn a_killed_run_is_picked_up() {
    use Mode::{Released, Stock};
    if let Some(folder) = std::env::var_os(FOLDER) {
        die(Path::new(&folder));
    }
    let expected = &training(Directory::temporary()).run(Stock);
    let killed = [
        // In the first epoch, and in the middle of a later one.
        (Released, Released, Moment::Step(3)),
        (Released, Released, Moment::Step(3 * STEPS + 4)),
        (Stock, Released, Moment::Step(2 * STEPS + 1)),
        (Released, Stock, Moment::Step(2 * STEPS + 6)),
        // While a part is written.
        (Released, Released, Moment::File("model-2.bpk")),
        (Released, Released, Moment::File("optim-3.bpk")),
        (Released, Stock, Moment::File("scheduler-3.bpk")),
    ];
    std::thread::scope(|scope| {
        for (first, second, moment) in killed {
            scope.spawn(move || survives(first, second, moment, expected));
        }
    });
}

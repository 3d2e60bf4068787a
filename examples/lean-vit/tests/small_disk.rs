//! A disk that is full, and has room again.
//!
//! Counts as ignored where this process may not mount a file system.

mod images;

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use tempfile::TempDir;
use vit_common::launching::{self, outcome, result, said};
use vit_common::small_disk::SmallDisk;

fn main() -> ExitCode {
    let tests: [(&str, fn()); 3] = [
        (
            "a_full_disk_gets_one_line_and_the_run_goes_on",
            a_full_disk_gets_one_line_and_the_run_goes_on,
        ),
        ("no_room_for_the_lock_or_the_settings", no_room_to_begin),
        ("no_room_for_the_results", no_room_for_the_results),
    ];
    let is_missing = !SmallDisk::can_mount();
    let tests = tests.map(|(name, test)| {
        let trial = Trial::test(name, move || -> Result<(), Failed> {
            test();
            Ok(())
        });
        trial.with_ignored_flag(is_missing)
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn train(folder: &Path, more: &[&str]) -> Command {
    launching::train(env!("CARGO_BIN_EXE_lean-vit"), 0, folder, more)
}

/// A short run on the bundled digits.
const NEW: [&str; 4] = ["--epochs", "2", "--batch-size", "128"];

/// Asserts that a run has ended with one line about a full disk.
fn could_not(output: &Output, begin: &str) {
    assert_eq!(output.status.code(), Some(74), "{}", said(output));
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = errors.lines().filter(|line| line.starts_with("error: "));
    let errors: Vec<_> = errors.collect();
    assert_eq!(errors.len(), 1, "{}", said(output));
    assert!(errors[0].starts_with(begin), "{errors:?}");
    assert!(errors[0].contains("No space left on device"), "{errors:?}");
}

/// Writes until there is no room; the file that takes it.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut filler = File::create(&path).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    path
}

fn a_full_disk_gets_one_line_and_the_run_goes_on() {
    let home = TempDir::new().unwrap();
    let whole = result(train(&home.path().join("whole"), &NEW));
    // Room for the settings, and not for the states.
    let disk = TempDir::new().unwrap();
    let mounted = SmallDisk::mount(disk.path(), 1400).expect("it could before");
    let folder = disk.path().join("run");
    let output = train(&folder, &NEW).output().unwrap();
    could_not(&output, "error: cannot write to ");
    // What was written of the checkpoint is not left on the full disk.
    assert!(folder.join("checkpoint").exists());
    assert!(!folder.join("checkpoint/unfinished").exists());
    mounted.resize(20_000);
    let resumed = result(train(&folder, &["--resume"]));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

fn no_room_to_begin() {
    let disk = TempDir::new().unwrap();
    // One block, which the lock takes.
    let mounted = SmallDisk::mount(disk.path(), 4).expect("it could before");
    let folder = disk.path().join("run");
    let begin = || train(&folder, &NEW).output().unwrap();
    could_not(&begin(), "error: cannot write to ");
    assert!(!folder.join("config.json").exists());
    fs::remove_file(folder.join("lock")).unwrap();
    let filler = fill(disk.path());
    could_not(&begin(), "error: cannot lock ");
    fs::remove_file(filler).unwrap();
    mounted.resize(20_000);
    assert_eq!(result(train(&folder, &NEW))["epochs"], 2);
}

fn no_room_for_the_results() {
    let home = TempDir::new().unwrap();
    // They are all classified once more after the last checkpoint.
    images::write(home.path(), 1, 16, 4000);
    let disk = TempDir::new().unwrap();
    let _mounted = SmallDisk::mount(disk.path(), 20_000).expect("it could before");
    let folder = disk.path().join("run");
    let mut run = train(&folder, &["--epochs", "1", "--batch-size", "16"]);
    run.arg("--data").arg(home.path());
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    launching::wait_for(&folder.join("checkpoint/epoch-1"));
    let filler = fill(disk.path());
    let output = run.wait_with_output().unwrap();
    could_not(&output, "error: cannot write to ");
    assert!(!folder.join("results.json").exists());
    fs::remove_file(filler).unwrap();
    assert_eq!(result(train(&folder, &["--resume"]))["epochs"], 1);
}

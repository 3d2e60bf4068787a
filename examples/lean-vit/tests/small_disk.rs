//! A disk that is full, and has room again.
//!
//! Counts as ignored where this process may not mount a file system.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::{Command, ExitCode};
use tempfile::TempDir;
use vit_common::launching::{self, outcome, result, said};
use vit_common::small_disk::SmallDisk;

fn main() -> ExitCode {
    let test = || -> Result<(), Failed> {
        a_full_disk_gets_one_line_and_the_run_goes_on();
        Ok(())
    };
    let trial = Trial::test("a_full_disk_gets_one_line_and_the_run_goes_on", test);
    let trial = trial.with_ignored_flag(!SmallDisk::can_mount());
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn train(folder: &Path, more: &[&str]) -> Command {
    launching::train(env!("CARGO_BIN_EXE_lean-vit"), 0, folder, more)
}

/// A short run on the bundled digits.
const NEW: [&str; 4] = ["--epochs", "2", "--batch-size", "128"];

fn a_full_disk_gets_one_line_and_the_run_goes_on() {
    let home = TempDir::new().unwrap();
    let whole = result(train(&home.path().join("whole"), &NEW));
    // Room for the settings, and not for the states.
    let disk = TempDir::new().unwrap();
    let mounted = SmallDisk::mount(disk.path(), 1400).expect("it could before");
    let folder = disk.path().join("run");
    let output = train(&folder, &NEW).output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{}", said(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = errors
        .lines()
        .filter(|line| line.starts_with("error: cannot write to "))
        .collect();
    assert_eq!(errors.len(), 1, "{}", said(&output));
    assert!(errors[0].contains("No space left on device"), "{errors:?}");
    // What was written of the checkpoint is not left on the full disk.
    assert!(folder.join("checkpoint").exists());
    assert!(!folder.join("checkpoint/unfinished").exists());
    mounted.resize(20_000);
    let resumed = result(train(&folder, &["--resume"]));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

//! Disks that are full, or read-only, and have room again.
//!
//! Counts as ignored where this process may not mount a file system.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use tempfile::TempDir;
use vit_common::launching::{self, outcome, result, said};
use vit_common::small_disk::SmallDisk;

fn main() -> ExitCode {
    let tests: [(&str, fn()); 2] = [
        (
            "a_run_goes_on_when_a_full_disk_has_room_again",
            a_run_goes_on_when_there_is_room,
        ),
        (
            "a_disk_that_is_read_only_has_its_own_exit_code",
            a_read_only_disk_is_told,
        ),
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
    launching::train(env!("CARGO_BIN_EXE_vit"), 0, folder, more)
}

/// A short run on the bundled digits.
const NEW: [&str; 6] = ["--epochs", "2", "--batch-size", "256", "--dropout", "0.1"];

/// Asserts that a run could not write, and says why in one line.
fn could_not_write(output: &Output, reason: &str) {
    // Where another thread has made room in between, the system no longer says why.
    let unknown = "as on a full disk";
    assert_eq!(output.status.code(), Some(74), "{}", said(output));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors = stderr.lines().filter(|line| !line.starts_with("epoch"));
    let errors: Vec<_> = errors.collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].starts_with("error: cannot "), "{stderr}");
    assert!(errors[0].contains("run"), "{stderr}");
    let is_named = [reason, unknown]
        .iter()
        .any(|text| errors[0].contains(text));
    assert!(is_named, "{stderr}");
}

fn a_run_goes_on_when_there_is_room() {
    let home = TempDir::new().unwrap();
    let whole = result(train(&home.path().join("whole"), &NEW));
    for kib in [24, 1400] {
        let disk = TempDir::new().unwrap();
        let mounted = SmallDisk::mount(disk.path(), kib).expect("it could before");
        let folder = disk.path().join("run");
        let output = train(&folder, &NEW).output().unwrap();
        could_not_write(&output, "No space left on device");
        mounted.resize(20_000);
        let resumed = result(train(&folder, &["--resume"]));
        assert_eq!(outcome(&resumed), outcome(&whole), "{kib} KiB");
    }
}

fn a_read_only_disk_is_told() {
    let disk = TempDir::new().unwrap();
    let mounted = SmallDisk::mount(disk.path(), 20_000).expect("it could before");
    let folder = disk.path().join("run");
    let stopped = [NEW.as_slice(), &["--stop-after", "8"]].concat();
    let output = train(&folder, &stopped).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    mounted.make_read_only();
    // In a folder that is there, and in one that is not.
    for mut run in [
        train(&folder, &["--resume"]),
        train(&disk.path().join("another run"), &NEW),
    ] {
        could_not_write(&run.output().unwrap(), "Read-only file system");
    }
    mounted.resize(20_000);
    assert_eq!(result(train(&folder, &["--resume"]))["epochs"], 2);
}

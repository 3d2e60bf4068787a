//! Disks that are full, or read-only, and have room again.

use super::{Test, tests};
use crate::PROGRAM;
use crate::program::{
    could_not_write, outcome, result, resume, said, train, wait_for, write_images,
};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use vit_common::small_disk::SmallDisk;

pub(super) const TESTS: &[Test] = tests![
    a_run_goes_on_when_a_full_disk_has_room_again,
    no_room_for_the_lock_or_the_settings,
    no_room_for_the_results,
    a_disk_that_is_read_only_has_its_own_exit_code,
];

/// A short run on the bundled digits.
const NEW: [&str; 6] = ["--epochs", "2", "--batch-size", "256", "--dropout", "0.1"];

const FULL: &str = "No space left on device";

/// A disk of so many KiB, and its folder.
fn small_disk(kib: usize) -> (SmallDisk, TempDir) {
    let folder = TempDir::new().unwrap();
    let disk = SmallDisk::mount(folder.path(), kib).expect("it could before");
    (disk, folder)
}

/// Writes until there is no room; the file that takes it.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut filler = File::create(&path).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    path
}

fn a_run_goes_on_when_a_full_disk_has_room_again() {
    let home = TempDir::new().unwrap();
    let whole = result(&mut train(&home.path().join("whole"), &NEW));
    // Room for the settings, and for the weights without the states.
    for kib in [24, 1400] {
        let (disk, folder) = small_disk(kib);
        let run = folder.path().join("run");
        could_not_write(&train(&run, &NEW).output().unwrap(), &["run", FULL]);
        // What was written of the checkpoint is not left on the full disk.
        for unfinished in PROGRAM.unfinished {
            assert!(!run.join(unfinished).exists(), "{unfinished}");
        }
        disk.resize(20_000);
        assert_eq!(
            outcome(&result(&mut resume(&run))),
            outcome(&whole),
            "{kib} KiB"
        );
    }
}

fn no_room_for_the_lock_or_the_settings() {
    // One block, which the lock takes.
    let (disk, folder) = small_disk(4);
    let run = folder.path().join("run");
    let begin = || train(&run, &NEW).output().unwrap();
    could_not_write(&begin(), &["cannot write to ", FULL]);
    assert!(!run.join("config.json").exists());
    fs::remove_file(run.join("lock")).unwrap();
    let filler = fill(folder.path());
    could_not_write(&begin(), &["cannot lock ", FULL]);
    fs::remove_file(filler).unwrap();
    disk.resize(20_000);
    assert_eq!(result(&mut train(&run, &NEW))["epochs"], 2);
}

fn no_room_for_the_results() {
    let home = TempDir::new().unwrap();
    // They are all classified once more after the last checkpoint.
    write_images(home.path(), 1, [16, 4000]);
    let (_disk, folder) = small_disk(20_000);
    let folder = folder.path().join("run");
    let mut run = train(&folder, &["--epochs", "1", "--batch-size", "16"]);
    run.arg("--data").arg(home.path());
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    for file in (PROGRAM.whole)(1) {
        wait_for(&folder.join(file));
    }
    let filler = fill(folder.parent().unwrap());
    could_not_write(
        &run.wait_with_output().unwrap(),
        &["cannot write to ", FULL],
    );
    assert!(!folder.join("results.json").exists());
    fs::remove_file(filler).unwrap();
    assert_eq!(result(&mut resume(&folder))["epochs"], 1);
}

fn a_disk_that_is_read_only_has_its_own_exit_code() {
    let (disk, folder) = small_disk(20_000);
    let run = folder.path().join("run");
    let output = train(&run, &NEW)
        .args(["--stop-after", "8"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    disk.make_read_only();
    // In a folder that is there, and in one that is not.
    for mut run in [
        resume(&run),
        train(&folder.path().join("another run"), &NEW),
    ] {
        let output = run.output().unwrap();
        could_not_write(&output, &["run", "Read-only file system"]);
    }
    disk.resize(20_000);
    assert_eq!(result(&mut resume(&run))["epochs"], 2);
}

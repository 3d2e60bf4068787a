//! The folder of a run: one run at a time, which no other overwrites.

use crate::PROGRAM;
use crate::program::{
    CANNOT_WRITE, Home, fails, files, json, names, outcome, result, signal, spawn, train, wait_for,
};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;

#[test]
fn a_folder_has_one_run_at_a_time() {
    let home = Home::new();
    let folder = home.folder("run");
    let mut first = spawn(&mut home.train("run", 5000));
    wait_for(&folder.join(PROGRAM.saved(1)));
    let before = names(&folder);
    let holder = format!("another program (process {}", first.id());
    let mut overwriting = home.train("run", 1);
    overwriting.arg("--overwrite");
    for mut second in [home.train("run", 1), overwriting, home.resume("run")] {
        // It is an ordinary error: no file could not be written.
        let (code, _) = fails(&mut second, &[&holder, "--artifact-dir"]);
        assert_eq!(code, 1);
        assert_eq!(names(&folder), before);
    }
    assert!(first.try_wait().unwrap().is_none(), "it goes on");
    signal(&first, "-KILL");
    first.wait().unwrap();
    // The system has unlocked it.
    result(home.train("run", 1).arg("--overwrite"));
}

#[test]
fn a_run_is_overwritten_only_if_asked() {
    let home = Home::new();
    let folder = home.folder("run");
    let first = result(&mut home.train("run", 1));
    let is_refused = |texts: &[&str]| {
        let before = files(&folder);
        fails(home.train("run", 1).args(["--seed", "7"]), texts);
        assert!(files(&folder) == before, "the run should be as it was");
    };
    is_refused(&["holds a finished run", "--overwrite", "--artifact-dir"]);
    let again = result(home.train("run", 1).args(["--seed", "7", "--overwrite"]));
    assert_ne!(outcome(&again), outcome(&first));
    home.stop("run", 2, 9, &["--overwrite"]);
    is_refused(&[
        "holds a run that was interrupted",
        "--resume",
        "--overwrite",
    ]);
}

#[test]
fn the_folder_of_another_program_stays_as_it_is() {
    for settings in [
        r#"{"mine": true}"#,
        r#"{"preset":"tiny","engine":{"mode":"release"},"epochs":3}"#,
    ] {
        let home = TempDir::new().unwrap();
        fs::write(home.path().join("config.json"), settings).unwrap();
        for file in (PROGRAM.checkpoint)(3) {
            let file = home.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "weights").unwrap();
        }
        let before = files(home.path());
        for more in [&[][..], &["--overwrite"]] {
            let way_out = "config.json is of another program: choose another --artifact-dir";
            fails(&mut train(home.path(), more), &[way_out]);
            assert!(files(home.path()) == before, "{settings}");
            assert!(!home.path().join("lock").exists());
        }
    }
}

/// Whatever it is that keeps a file from being written.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_has_its_own_exit_code() {
    let home = Home::new();
    result(&mut home.train("run", 1));
    fs::remove_file(home.folder("run/lock")).unwrap();
    fs::write(home.folder("file"), "").unwrap();
    for lock in ["run/lock", "locked/lock"] {
        fs::create_dir_all(home.folder(lock)).unwrap();
    }
    let [below_a_file, locked, run] = ["file/run", "locked", "run"].map(|name| home.folder(name));
    // Folders of the system, in which not even root may write.
    let [nowhere, system] = ["/sys/new/run", "/sys/kernel"].map(Path::new);
    for (folder, more, texts) in [
        (nowhere, None, ["cannot write to /sys/new/run: ", ""]),
        (system, None, ["cannot lock /sys/kernel/lock: ", ""]),
        (&below_a_file, None, ["cannot write to ", "Not a directory"]),
        (&locked, None, ["cannot lock ", "Is a directory"]),
        (&run, Some("--resume"), ["cannot lock ", "Is a directory"]),
        (
            &run,
            Some("--overwrite"),
            ["cannot lock ", "Is a directory"],
        ),
    ] {
        let (code, _) = fails(train(folder, &[]).args(more), &texts);
        assert_eq!(code, CANNOT_WRITE, "{}", folder.display());
    }
}

/// As `2>&1 | head -1`, or in a terminal that is closed.
#[test]
fn a_run_goes_on_when_nobody_reads() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    let mut run = home.train("run", 3);
    let mut run = run
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(run.stdout.take());
    let mut first = String::new();
    BufReader::new(run.stderr.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert!(first.starts_with("epoch   1/3"), "{first}");
    run.wait().unwrap();
    let saved = json(&home.folder("run/results.json"));
    assert_eq!(outcome(&saved), outcome(&whole));
}

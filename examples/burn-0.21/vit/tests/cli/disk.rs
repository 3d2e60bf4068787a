//! Files that cannot be written, and folders with odd names or entries.

use crate::program::{
    CANNOT_WRITE, Home, could_not_write, fails, json, names, result, said, train, wait_for,
};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// In a shell that lets no file get larger than so many blocks of 512 bytes.
#[test]
fn a_file_that_cannot_be_written_is_named() {
    let home = TempDir::new().unwrap();
    // The optimizer's states take 1.6 MB, everything else less than one.
    for (name, blocks, file) in [("run", 2000, "optim-1.mpk"), ("other", 0, "other")] {
        let run = train(
            &home.path().join(name),
            &["--epochs", "1", "--batch-size", "256"],
        );
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &script])
            .arg(run.get_program())
            .args(run.get_args());
        let output = shell.output().unwrap();
        could_not_write(&output, &["File too large"]);
        assert!(said(&output).contains(file), "{}", said(&output));
    }
    let saved = names(&home.path().join("run/checkpoint"));
    assert!(
        saved.iter().all(|name| !name.contains("optim-1")),
        "{saved:?}"
    );
}

#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_named() {
    let home = Home::new();
    home.stop("run", 3, 17, &[]);
    let old = home.folder("run/checkpoint/model-1.mpk");
    fs::remove_file(&old).unwrap();
    fs::create_dir(&old).unwrap();
    let output = home.resume("run").output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(CANNOT_WRITE),
        "{}",
        said(&output)
    );
    let said = String::from_utf8(output.stderr).unwrap();
    let text = format!("error: cannot remove {}: ", old.display());
    assert!(said.lines().last().unwrap().starts_with(&text), "{said}");
}

/// Burn would look for the old checkpoints under another name.
#[cfg(target_os = "linux")]
#[test]
fn old_checkpoints_are_removed_from_a_folder_whose_name_is_no_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let home = TempDir::new().unwrap();
    let folder = home.path().join(OsStr::from_bytes(b"run \xff"));
    result(&mut train(
        &folder,
        &["--epochs", "3", "--batch-size", "512"],
    ));
    let whole = ["model", "optim", "scheduler"].map(|part| {
        let of = |epoch| {
            [
                format!("{part}-{epoch}.mpk"),
                format!("{part}-{epoch}.mpk.sha256"),
            ]
        };
        [of(2), of(3)].concat()
    });
    assert_eq!(names(&folder.join("checkpoint")), whole.concat());
}

/// Burn's summary of a folder panics at it.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_none_of_a_run() {
    let home = Home::new();
    fs::create_dir(home.folder("run")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", home.folder("run/latest")).unwrap();
    let printed = result(&mut home.train("run", 1));
    assert_eq!(json(&home.folder("run/results.json")), printed);
}

/// What is lost is the timeline, and not what was trained.
#[test]
fn a_timeline_that_cannot_be_written_is_all_that_is_lost() {
    let home = TempDir::new().unwrap();
    let [folder, run] = ["there", "run"].map(|name| home.path().join(name));
    fs::create_dir(&folder).unwrap();
    let mut command = train(&run, &["--epochs", "1", "--batch-size", "256"]);
    command
        .arg("--memory-timeline")
        .arg(folder.join("timeline.json.gz"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_for(&run.join("config.json"));
    // Before the fourth batch.
    fs::remove_dir(&folder).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(CANNOT_WRITE),
        "{}",
        said(&output)
    );
    let last = String::from_utf8(output.stderr).unwrap();
    let last = last.lines().last().unwrap();
    assert!(last.starts_with("error: no memory timeline: "), "{last}");
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json(&run.join("results.json")), printed);
}

#[cfg(target_os = "linux")]
#[test]
fn where_no_timeline_can_be_written_is_refused_at_once() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let file = ["--memory-timeline", "/sys/kernel/timeline.json.gz"];
    let text = "error: --memory-timeline cannot write /sys/kernel/timeline.json.gz: ";
    let (code, said) = fails(&mut train(&run, &file), &[text]);
    assert_eq!(code, CANNOT_WRITE, "{said}");
    assert!(!run.exists());
}

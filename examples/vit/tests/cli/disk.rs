//! Disks that are full, or that change what is on them, and folders that two runs want.

use crate::images::Noise;
use crate::program::{names, result, resume, train, vit};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The exit code of a run that could not write a file.
const CANNOT_WRITE: i32 = 74;

/// A run in a shell that lets no file get larger than so many blocks of 512 bytes.
fn with_small_files(blocks: usize, folder: &Path) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_vit"), "train", "--json"])
        .args(["--epochs", "1", "--batch-size", "256", "--artifact-dir"])
        .arg(folder)
        .output()
        .unwrap()
}

/// Asserts that a run could not write `file`, and says so in its last line.
fn could_not_write(output: &Output, file: &str, reason: &str) {
    // Where another thread has made room in between, the system no longer says why.
    let unknown = "as on a full disk";
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CANNOT_WRITE), "{said}");
    let errors = said.lines().filter(|line| !line.starts_with("epoch"));
    let errors: Vec<_> = errors.collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].starts_with("error: cannot "), "{said}");
    assert!(errors[0].contains(file), "{said}");
    let is_named = [reason, unknown]
        .iter()
        .any(|reason| errors[0].contains(reason));
    assert!(is_named, "{said}");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    // The optimizer's states take 1.6 MB, everything else less than one.
    could_not_write(
        &with_small_files(2000, &folder),
        "optim-1.mpk",
        "File too large",
    );
    let saved = names(&folder.join("checkpoint"));
    assert!(
        saved.iter().all(|name| !name.contains("optim-1")),
        "{saved:?}"
    );
    could_not_write(
        &with_small_files(0, &home.path().join("other")),
        "other",
        "File too large",
    );
}

/// A run that has the checkpoints of two epochs of three.
fn stopped(folder: &Path, more: &[&str]) {
    let mut command = vit();
    command
        .args(["train", "--json", "--epochs", "3", "--batch-size", "256"])
        .args(["--stop-after", "13", "--artifact-dir"])
        .arg(folder)
        .args(more);
    command.assert().success();
    assert!(folder.join("checkpoint/model-2.mpk").exists());
}

/// What a run says that cannot be resumed.
fn refused(folder: &Path) -> String {
    let output = resume(folder).assert().failure().get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_bit_that_has_flipped_is_not_trained_on() {
    let home = TempDir::new().unwrap();
    let folder = home.path();
    stopped(folder, &[]);
    let files = ["model-2.mpk", "optim-2.mpk", "scheduler-2.mpk"];
    for file in files.map(|name| folder.join("checkpoint").join(name)) {
        let whole = fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        let at = bytes.len() / 2;
        bytes[at] ^= 4;
        fs::write(&file, bytes).unwrap();
        let said = refused(folder);
        let text = format!("{} is not as it was saved", file.display());
        assert!(said.contains(&text), "{said}");
        assert!(
            said.contains("the checkpoint of epoch 1 is whole"),
            "{said}"
        );
        fs::write(&file, whole).unwrap();
    }
    // As the message says.
    fs::write(folder.join("checkpoint").join(files[0]), "").unwrap();
    for file in files {
        fs::remove_file(folder.join("checkpoint").join(file)).unwrap();
    }
    assert_eq!(result(&mut resume(folder))["epochs"], 3);
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let home = TempDir::new().unwrap();
    for (name, more) in [
        ("seed", ["--seed", "7"]),
        ("optimizer", ["--optimizer", "adam"]),
        ("pool", ["--pool", "mean"]),
    ] {
        let [run, other] = [name, "other"].map(|folder| home.path().join(name).join(folder));
        stopped(&run, &[]);
        stopped(&other, &more);
        for file in names(&other.join("checkpoint")) {
            let [from, to] = [&other, &run].map(|run| run.join("checkpoint").join(&file));
            fs::copy(from, to).unwrap();
        }
        let said = refused(&run);
        assert!(
            said.contains("was saved by a run with other settings"),
            "{said}"
        );
    }
}

/// The settings say another preset than that of the checkpoints.
#[test]
fn a_preset_swapped_in_by_hand_is_refused() {
    let noise = Noise::new();
    let train = |name: &str, preset: &str| {
        let mut command = noise.train(name, 3);
        command.args([
            "--preset",
            preset,
            "--image-size",
            "16",
            "--patch-size",
            "8",
        ]);
        command.args(["--stop-after", "20"]).assert().success();
        noise.folder(name)
    };
    let (tiny, small) = (train("tiny", "tiny"), train("small", "small"));
    let settings = tiny.join("config.json");
    let before = fs::read(&settings).unwrap();
    for file in names(&small.join("checkpoint")) {
        let [from, to] = [&small, &tiny].map(|run| run.join("checkpoint").join(&file));
        fs::copy(from, to).unwrap();
    }
    let text = "was saved by a run with other settings";
    let said = refused(&tiny);
    assert!(said.contains(text), "{said}");
    // And the settings with it, but for what stands in them of the run: then it is the other run.
    fs::copy(small.join("config.json"), &settings).unwrap();
    assert_eq!(result(&mut resume(&tiny))["epochs"], 3);
    // The settings alone.
    let other = train("other", "tiny");
    fs::copy(small.join("config.json"), other.join("config.json")).unwrap();
    let said = refused(&other);
    assert!(said.contains(text), "{said}");
    assert_ne!(before, fs::read(&settings).unwrap());
}

#[test]
fn a_folder_has_one_run_at_a_time() {
    let home = TempDir::new().unwrap();
    let mut first = Command::new(env!("CARGO_BIN_EXE_vit"))
        .args(["train", "--json", "--epochs", "1000", "--artifact-dir"])
        .arg(home.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !home.path().join("train").exists() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        sleep(Duration::from_millis(5));
    }
    let before = names(home.path());
    let holder = format!("another program (process {}", first.id());
    let mut overwriting = train(home.path());
    overwriting.arg("--overwrite");
    for mut second in [train(home.path()), overwriting, resume(home.path())] {
        let output = second.assert().failure().get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&holder), "{said}");
        assert_eq!(names(home.path()), before);
    }
    assert!(first.try_wait().unwrap().is_none(), "it goes on");
    first.kill().unwrap();
    first.wait().unwrap();
    // The system has unlocked it.
    let mut overwriting = train(home.path());
    result(overwriting.arg("--overwrite"));
}

#[test]
fn nobody_needs_to_read_what_a_run_says() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vit"));
    command.args(["train", "--json", "--epochs", "2", "--batch-size", "256"]);
    command.arg("--artifact-dir").arg(&folder);
    let mut run = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(run.stderr.take());
    assert!(run.wait().unwrap().success());
    assert!(folder.join("results.json").exists());
}

#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_named() {
    let home = TempDir::new().unwrap();
    stopped(home.path(), &[]);
    let old = home.path().join("checkpoint/model-1.mpk");
    fs::remove_file(&old).unwrap();
    fs::create_dir(&old).unwrap();
    let output = resume(home.path()).assert().code(CANNOT_WRITE);
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
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
    let mut command = vit();
    command.args(["train", "--json", "--epochs", "3", "--batch-size", "512"]);
    result(command.arg("--artifact-dir").arg(&folder));
    let saved = names(&folder.join("checkpoint"));
    let models = saved.iter().filter(|name| name.starts_with("model-"));
    let whole = [
        "model-2.mpk",
        "model-2.mpk.sha256",
        "model-3.mpk",
        "model-3.mpk.sha256",
    ];
    assert_eq!(models.collect::<Vec<_>>(), whole);
}

/// Burn's summary of a folder panics at it.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_none_of_a_run() {
    let home = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", home.path().join("latest")).unwrap();
    result(&mut train(home.path()));
    assert!(home.path().join("results.json").exists());
}

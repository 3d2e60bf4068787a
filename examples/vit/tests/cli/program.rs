//! Runs the program and reads its output.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::Path;

pub(crate) use vit_common::launching::outcome;

pub(crate) fn vit() -> Command {
    Command::cargo_bin("vit").expect("the binary is built with the tests")
}

/// A short run on the bundled digits.
pub(crate) fn train(folder: &Path) -> Command {
    let mut command = vit();
    command
        .args(["train", "--json", "--epochs", "2", "--batch-size", "256"])
        .args(["--dropout", "0.1", "--artifact-dir"])
        .arg(folder);
    command
}

pub(crate) fn result(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Asserts that the program fails with one line that mentions `text`, and that it does not create
/// `untouched`.
pub(crate) fn fails(command: &mut Command, text: &str, untouched: &Path) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
    assert!(!untouched.exists(), "nothing should have been written");
}

pub(crate) fn resume(folder: &Path) -> Command {
    let mut command = vit();
    command
        .args(["train", "--json", "--resume", "--artifact-dir"])
        .arg(folder);
    command
}

/// The lines on stderr of a run that succeeds.
pub(crate) fn lines(command: &mut Command) -> Vec<String> {
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(String::from).collect()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

//! Runs the program and reads its output.

use crate::images;
use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) use vit_common::launching::outcome;

pub(crate) fn lean_vit() -> Command {
    Command::cargo_bin("lean-vit").expect("the binary is built with the tests")
}

/// A folder for runs, with a small data set of random images with random labels in it.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        let home = TempDir::new().unwrap();
        images::write(home.path(), 1, 60, 16);
        Self(home)
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The arguments of a run in the folder `name`, with epochs of 8 batches.
    pub(crate) fn args(&self, name: &str, epochs: usize) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_string();
        ["train", "--json", "--batch-size", "8", "--epochs"]
            .map(String::from)
            .into_iter()
            .chain([epochs.to_string(), "--data".into(), path(self.0.path())])
            .chain(["--artifact-dir".into(), path(&self.folder(name))])
            .collect()
    }

    pub(crate) fn train(&self, name: &str, epochs: usize) -> Command {
        let mut command = lean_vit();
        command.args(self.args(name, epochs));
        command
    }
}

pub(crate) fn resume(folder: &Path) -> Command {
    let mut command = lean_vit();
    command
        .args(["train", "--json", "--resume", "--artifact-dir"])
        .arg(folder);
    command
}

pub(crate) fn result(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// The lines on stderr of a run that succeeds.
pub(crate) fn lines(command: &mut Command) -> Vec<String> {
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(String::from).collect()
}

/// Asserts that the program fails with one line that mentions every one of `texts`.
pub(crate) fn fails(command: &mut Command, texts: &[&str]) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    for text in texts {
        assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    }
    assert!(output.stdout.is_empty());
}

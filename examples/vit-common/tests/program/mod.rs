//! Runs of the program under test, and what they print and leave.
//!
//! `vit-0-21` and `vit` mount this folder and those beside it in their own tests, and say in
//! `PROGRAM` what differs between them. A promise that both make is tested here, once for each; one
//! that a single program makes is tested there.

#![allow(dead_code, reason = "no program of tests uses all of it")]

use crate::PROGRAM;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vit_common::launching;
pub(crate) use vit_common::launching::{outcome, result, said, wait_for};
use vit_common::rng::SeededRng;

/// The exit code of a run that could not write a file.
pub(crate) const CANNOT_WRITE: i32 = 74;

/// What differs between the programs.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The binary.
    pub(crate) path: &'static str,
    /// The files of the checkpoint of an epoch, in the folder of a run.
    pub(crate) checkpoint: fn(usize) -> [String; 3],
    /// The files that are there only once a checkpoint is whole, whichever comes last.
    pub(crate) whole: fn(usize) -> Vec<String>,
    /// A file or folder that is there while the checkpoint of epoch 2 is saved, for each part of it
    /// that takes long.
    pub(crate) unfinished: &'static [&'static str],
    /// In the message about a file of epoch 2 that is not as it was saved.
    pub(crate) damaged: &'static [&'static str],
    /// How a run goes on that stops after the last batch of its first epoch: before the validation,
    /// or after its checkpoint.
    pub(crate) after_an_epoch: &'static str,
    /// Metrics that are logged for each batch.
    pub(crate) logs: &'static [&'static str],
    /// The option that names the device, for one that is not compiled in.
    pub(crate) cuda: [&'static str; 2],
    /// Modes and ways to checkpoint, and whether these lower the peak of that mode.
    pub(crate) checkpointing: &'static [(&'static str, &'static str, bool)],
    /// All optimizers.
    pub(crate) optimizers: &'static str,
    /// Options with which the loss is soon NaN.
    pub(crate) diverging: [&'static str; 4],
    /// An option that the other program does not have, another value than its default, and the
    /// setting.
    pub(crate) own_setting: (&'static str, &'static str, &'static str),
    /// The peak of each process of a run, in MiB, from what it has printed or left.
    pub(crate) peaks: fn(&Path, &Output) -> Vec<f64>,
}

impl Program {
    /// A file in the folder of a run that is there about when the checkpoint of an epoch is whole.
    pub(crate) fn saved(&self, epoch: usize) -> String {
        let [.., last] = (self.checkpoint)(epoch);
        last
    }
}

/// `train` on the bundled digits.
pub(crate) fn train(folder: &Path, more: &[&str]) -> Command {
    launching::train(PROGRAM.path, 0, folder, more)
}

pub(crate) fn resume(folder: &Path) -> Command {
    train(folder, &["--resume"])
}

/// Writes random images of 8x8 with random labels of four classes, as MNIST's files: so many for
/// training and for validation.
pub(crate) fn write_images(folder: &Path, seed: u64, [train, validation]: [u32; 2]) {
    fs::create_dir_all(folder).unwrap();
    let mut random = SeededRng::new(&[seed]);
    for (part, count) in [("train", train), ("t10k", validation)] {
        let mut write = |what: &str, dims: &[u32], below: usize| {
            let len: u32 = dims.iter().product();
            let elements: Vec<u8> = (0..len).map(|_| random.below(below) as u8).collect();
            fs::write(
                folder.join(format!("{part}-{what}-ubyte")),
                idx(dims, &elements),
            )
            .unwrap();
        };
        write("images-idx3", &[count, 8, 8], 256);
        write("labels-idx1", &[count], 4);
    }
}

/// The bytes of an IDX file.
pub(crate) fn idx(dims: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|size| size.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

/// A folder for runs, with a small data set in it whose labels are random, so that the validation
/// loss soon rises.
pub(crate) struct Home(TempDir);

impl Home {
    /// Epochs of 8 batches.
    pub(crate) fn new() -> Self {
        Self::with([60, 16])
    }

    /// So many images for training and for validation.
    pub(crate) fn with(counts: [u32; 2]) -> Self {
        let home = TempDir::new().unwrap();
        write_images(home.path(), 1, counts);
        Self(home)
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run in the folder `name`, in batches of 8 images.
    pub(crate) fn train(&self, name: &str, epochs: usize) -> Command {
        let epochs = epochs.to_string();
        let batches = ["--batch-size", "8", "--epochs", &epochs];
        let mut command = train(&self.folder(name), &batches);
        command.arg("--data").arg(self.0.path());
        command
    }

    pub(crate) fn resume(&self, name: &str) -> Command {
        resume(&self.folder(name))
    }

    /// A run that stops after so many batches; the last line that it prints.
    pub(crate) fn stop(&self, name: &str, epochs: usize, batches: usize, more: &[&str]) -> String {
        let mut run = self.train(name, epochs);
        run.args(["--stop-after", &batches.to_string()]).args(more);
        let mut said = lines(&mut run);
        assert!(!self.folder(name).join("results.json").exists());
        said.pop().expect("it says how to go on")
    }

    /// The settings of a run.
    pub(crate) fn settings(&self, name: &str) -> Value {
        json(&self.folder(name).join("config.json"))
    }
}

/// The lines on stderr of a run that succeeds.
pub(crate) fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(String::from).collect()
}

/// Asserts that the program fails with one line that mentions each of `texts`; its exit code, and the
/// line.
pub(crate) fn fails(command: &mut Command, texts: &[&str]) -> (i32, String) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    for text in texts {
        assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    }
    assert!(output.stdout.is_empty());
    let code = output.status.code().expect("no signal has ended it");
    assert_ne!(code, 0, "{stderr:?}");
    (code, stderr)
}

/// Asserts that a run could not write, and says so in one line beside those of its epochs.
pub(crate) fn could_not_write(output: &Output, texts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CANNOT_WRITE), "{stderr}");
    let errors: Vec<_> = stderr
        .lines()
        .filter(|line| !line.starts_with("epoch"))
        .collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].starts_with("error: cannot "), "{stderr}");
    for text in texts {
        // Where another thread has made room in between, the system no longer says why.
        let is_named = errors[0].contains(text) || errors[0].contains("as on a full disk");
        assert!(is_named, "{stderr:?} should mention {text:?}");
    }
}

/// Starts a run that nobody reads.
pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

pub(crate) fn signal(process: &Child, signal: &str) {
    let id = process.id().to_string();
    let kill = Command::new("kill").args([signal, &id]).status();
    assert!(kill.unwrap().success());
}

/// Waits until something is the case.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        sleep(Duration::from_millis(2));
    }
}

pub(crate) fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// What is in a folder, in the order of its names.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// All files of a run but its lock, which names the process that had it last.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if !path.ends_with("lock") {
            all.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    all
}

//! Runs of the program under test, and what they print and leave.
//!
//! `vit` and `vit-0-21` mount these files in their own tests, and say in `PROGRAM` what differs
//! between them. A promise that both make is tested here, once for each.

#![allow(dead_code, reason = "no program of tests uses all of it")]

use crate::PROGRAM;
use image::{GrayImage, Luma};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vit_common::rng::SeededRng;

/// What differs between the programs.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The binary.
    pub(crate) path: &'static str,
    /// The files of a checkpoint.
    pub(crate) parts: [&'static str; 3],
    /// The option that names the device, for one that is not compiled in.
    pub(crate) cuda: &'static str,
    /// Options with which the loss is soon NaN.
    pub(crate) diverging: &'static str,
    /// Modes and ways to checkpoint, and whether these lower the peak of that mode.
    pub(crate) checkpointing: &'static [(&'static str, &'static str, bool)],
    /// Options that only this program has or refuses, and a part of what it says.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

impl Program {
    /// A file in the folder of a run that is there once the checkpoint of an epoch is whole, or
    /// about then.
    pub(crate) fn saved(&self, epoch: usize) -> PathBuf {
        let (name, extension) = self.parts[2].split_once('.').unwrap();
        Path::new("checkpoint").join(format!("{name}-{epoch}.{extension}"))
    }
}

/// `train` on the bundled digits.
pub(crate) fn train(folder: &Path, options: &str) -> Command {
    let mut command = Command::new(PROGRAM.path);
    command.args(["train", "--json", "--artifact-dir"]);
    command.arg(folder).args(options.split_whitespace());
    command
}

/// Images of a small data set, of which 32 are to train with.
pub(crate) const IMAGES: usize = 40;

/// A folder for runs, with a small data set in it whose labels are random.
pub(crate) struct Home(TempDir);

impl Home {
    /// Epochs of 4 batches.
    pub(crate) fn new() -> Self {
        let home = Self(TempDir::new().unwrap());
        write_images(&home.folder("images"), 1, IMAGES);
        home
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run in the folder `name`, in batches of 8 images and, unless there are others among the
    /// options, with patches of 4x4.
    pub(crate) fn train(&self, name: &str, epochs: usize, options: &str) -> Command {
        let mut options = format!("--batch-size 8 --epochs {epochs} {options}");
        if !options.contains("--patch-size") {
            options += " --patch-size 4";
        }
        let mut command = train(&self.folder(name), &options);
        command.arg("--data").arg(self.folder("images"));
        command
    }

    pub(crate) fn resume(&self, name: &str, options: &str) -> Command {
        train(&self.folder(name), &format!("--resume {options}"))
    }

    /// A run that stops after so many batches; what it says.
    pub(crate) fn stop(&self, name: &str, epochs: usize, batches: usize, options: &str) -> String {
        let options = format!("--stop-after {batches} {options}");
        let output = self.train(name, epochs, &options).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(!self.folder(name).join("results.json").exists());
        said(&output)
    }

    /// The settings of a run.
    pub(crate) fn settings(&self, name: &str) -> Value {
        json(&self.folder(name).join("config.json"))
    }
}

/// Writes so many random grey images of 8x8, with random labels of four classes. A fifth of them is
/// for validation.
pub(crate) fn write_images(folder: &Path, seed: u64, count: usize) {
    let mut random = SeededRng::new(&[seed]);
    for index in 0..count {
        let class = folder.join(random.below(4).to_string());
        fs::create_dir_all(&class).unwrap();
        let image = GrayImage::from_fn(8, 8, |_, _| Luma([random.below(256) as u8]));
        image.save(class.join(format!("{index}.png"))).unwrap();
    }
}

/// What a program has printed.
pub(crate) fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{out}\n{err}")
}

/// The results of a run, which one of its processes prints.
pub(crate) fn result(command: &mut Command) -> Value {
    let output = command.output().expect("the program is started");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().count();
    assert_eq!(lines, 1, "one process has the results: {text}");
    serde_json::from_str(&text).expect("the results are JSON")
}

/// The results that a resumed run must have in common with an uninterrupted one.
pub(crate) fn outcome(result: &Value) -> [&Value; 4] {
    let keys = [
        "weights_digest",
        "validation_accuracy",
        "train_loss",
        "epochs",
    ];
    keys.map(|key| &result[key])
}

/// Asserts that the program fails with one line that mentions each of `texts`, after those of its
/// epochs; its exit code.
pub(crate) fn fails(command: &mut Command, texts: &[&str]) -> i32 {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines = stderr.lines().filter(|line| !line.starts_with("epoch"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 1, "{stderr:?}");
    assert!(lines[0].starts_with("error: "), "{stderr:?}");
    for text in texts {
        assert!(lines[0].contains(text), "{stderr:?} lacks {text:?}");
    }
    assert!(output.stdout.is_empty());
    output.status.code().expect("no signal has ended it")
}

/// Waits until there is a file.
pub(crate) fn wait_for(file: &Path) {
    let end = Instant::now() + Duration::from_secs(600);
    while !file.exists() {
        assert!(Instant::now() < end, "{}", file.display());
        sleep(Duration::from_millis(5));
    }
}

pub(crate) fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// What is in a folder, in the order of its names.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

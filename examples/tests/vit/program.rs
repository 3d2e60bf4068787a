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
use vit_inputs::SeededRng;

/// What differs between the programs.
pub(crate) struct Program {
    /// The binary.
    pub(crate) path: &'static str,
    /// The last file of the checkpoint of the first epoch.
    pub(crate) saved: &'static str,
    /// Ends a run after its fourth batch.
    pub(crate) stop: &'static str,
    /// Modes and ways to checkpoint, and whether these lower the peak of that mode.
    pub(crate) checkpointing: &'static [(&'static str, &'static str, bool)],
    /// Options that only this program refuses, and a part of what it says.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

/// `train` on the bundled digits.
pub(crate) fn train(folder: &Path, options: &str) -> Command {
    let mut command = Command::new(PROGRAM.path);
    command.args(["train", "--artifact-dir"]);
    command.arg(folder).args(options.split_whitespace());
    command
}

/// A folder for runs, with a small data set in it whose labels are random.
pub(crate) struct Home(TempDir);

impl Home {
    /// Epochs of 4 batches.
    pub(crate) fn new() -> Self {
        let home = Self(TempDir::new().unwrap());
        write_images(&home.folder("images"), 1, 40);
        home
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run in the folder `name`, in batches of 8 images.
    pub(crate) fn train(&self, name: &str, epochs: usize, options: &str) -> Command {
        let options = format!("--batch-size 8 --epochs {epochs} {options}");
        let mut command = train(&self.folder(name), &options);
        command.arg("--data").arg(self.folder("images"));
        command
    }

    pub(crate) fn resume(&self, name: &str, options: &str) -> Command {
        train(&self.folder(name), &format!("--resume {options}"))
    }

    /// Leaves the files of a run that was killed after this epoch. A run keeps two epochs.
    pub(crate) fn forget(&self, name: &str, after: usize) {
        fs::remove_file(self.folder(name).join("results.json")).unwrap();
        let folder = self.folder(name).join("checkpoint");
        for entry in fs::read_dir(folder).unwrap() {
            // `model-2.bpk.sha256`
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let epoch = name.split(['-', '.']).nth(1).unwrap();
            if epoch.parse::<usize>().unwrap() > after {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// The settings of a run.
    pub(crate) fn settings(&self, name: &str) -> Value {
        json(&self.folder(name).join("config.json"))
    }
}

/// Writes so many random images of 8x8, with random labels of four classes. A fifth of them is for
/// validation.
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

/// The results of a run.
pub(crate) fn result(command: &mut Command) -> Value {
    let output = command.output().expect("the program is started");
    assert!(output.status.success(), "{}", said(&output));
    let mut arguments = command.get_args();
    arguments.find(|it| *it == "--artifact-dir");
    json(&Path::new(arguments.next().unwrap()).join("results.json"))
}

/// The results that a resumed run must have in common with an uninterrupted one.
pub(crate) fn outcome(result: &Value) -> [&Value; 3] {
    ["weights_digest", "validation_loss", "epochs"].map(|key| &result[key])
}

/// Asserts that the program fails with one line that has this text, after those of its epochs.
pub(crate) fn fails(command: &mut Command, text: &str) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let lines = stderr.lines().filter(|line| !line.starts_with("epoch"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 1, "{stderr:?}");
    assert!(lines[0].starts_with("error: "), "{stderr:?}");
    assert!(lines[0].contains(text), "{stderr:?} lacks {text:?}");
    assert!(!output.status.success());
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

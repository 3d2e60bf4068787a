//! Small data sets.

use crate::program::vit;
use assert_cmd::Command;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn idx(dims: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    for size in dims {
        bytes.extend(size.to_be_bytes());
    }
    bytes.extend(elements);
    bytes
}

/// Writes two images with labels under MNIST's names, for training and for validation.
pub(crate) fn write_idx(folder: &Path) {
    for part in ["train", "t10k"] {
        let image = |what: &str| folder.join(format!("{part}-{what}-ubyte"));
        fs::write(image("images-idx3"), idx(&[2, 4, 4], &[7; 32])).unwrap();
        fs::write(image("labels-idx1"), idx(&[2], &[0, 1])).unwrap();
    }
}

pub(crate) fn write_png(file: &Path, level: u8) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(4, 4, image::Rgb([level, 0, 255 - level]))
        .save(file)
        .unwrap();
}

/// A small data set of random images with random labels, so that the validation loss soon rises.
pub(crate) struct Noise {
    home: TempDir,
}

impl Noise {
    /// Epochs of 8 batches.
    pub(crate) fn new() -> Self {
        Self::with(60, 16)
    }

    pub(crate) fn with(train: u32, validation: u32) -> Self {
        let home = TempDir::new().unwrap();
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for (part, count) in [("train", train), ("t10k", validation)] {
            let pixels: Vec<u8> = (0..count * 64).map(|_| random()).collect();
            let labels: Vec<u8> = (0..count).map(|_| random() % 4).collect();
            let file = |what: &str| home.path().join(format!("{part}-{what}-ubyte"));
            fs::write(file("images-idx3"), idx(&[count, 8, 8], &pixels)).unwrap();
            fs::write(file("labels-idx1"), idx(&[count], &labels)).unwrap();
        }
        Self { home }
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The arguments of a run of `epochs` epochs, with its artifacts in the folder `name`.
    pub(crate) fn args(&self, name: &str, epochs: usize) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_string();
        ["train", "--json", "--batch-size", "8", "--epochs"]
            .map(String::from)
            .into_iter()
            .chain([epochs.to_string(), "--data".into(), path(self.home.path())])
            .chain(["--artifact-dir".into(), path(&self.folder(name))])
            .collect()
    }

    pub(crate) fn train(&self, name: &str, epochs: usize) -> Command {
        let mut command = vit();
        command.args(self.args(name, epochs));
        command
    }

    /// Starts or resumes the run, and kills it as soon as `now` returns true. Returns whether it
    /// was killed before it ended.
    #[cfg(unix)]
    pub(crate) fn kill(
        &self,
        name: &str,
        epochs: usize,
        is_first: bool,
        now: impl Fn() -> bool,
    ) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let mut args = self.args(name, epochs);
        if !is_first {
            args.push("--resume".into());
        }
        let mut child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !now() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_micros(50));
        }
        child.kill().unwrap();
        child.wait().unwrap().signal() == Some(9)
    }
}

//! The folder of a training run: its settings, its results, and what Burn's learner keeps there.

use crate::config::TrainConfig;
use crate::stopping::LOSS;
use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::config::Config;
use burn::train::LearnerSummary;
use burn_gradient_release_train::resume;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use vit_common::files::{write_json, writing};
use vit_common::lock::Lock;
use vit_common::memory::Peak;

const SETTINGS: &str = "config.json";
const RESULTS: &str = "results.json";
/// The peak of a process that has no results.
const MEMORY: &str = "memory.json";

/// The files of Burn's learner.
const CHECKPOINTS: &str = "checkpoint";
const CHECKPOINT_FILES: [&str; 4] = ["model-", "optim-", "scheduler-", "unfinished-"];
const LOGS: [&str; 2] = ["train", "valid"];
const APPLICATION_LOG: &str = "experiment.log";

/// The folder of one training run.
#[derive(Clone, Debug)]
pub struct Artifacts {
    folder: PathBuf,
    /// Of several processes, the first alone writes settings, checkpoints and results.
    rank: usize,
}

/// The mean losses of a run: pairs of an epoch and its loss.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Losses of training.
    pub train: Vec<(usize, f64)>,
    /// Losses of validation.
    pub valid: Vec<(usize, f64)>,
}

impl Artifacts {
    /// Refers to a folder, without reading or writing it.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self::of_rank(folder, 0)
    }

    /// The same for one of several processes.
    pub fn of_rank(folder: impl Into<PathBuf>, rank: usize) -> Self {
        Self {
            folder: folder.into(),
            rank,
        }
    }

    /// Whether it is the first of several processes, or the only one.
    pub fn is_of_first_rank(&self) -> bool {
        self.rank == 0
    }

    /// The folder of the metrics of this process.
    pub fn metrics(&self) -> PathBuf {
        match self.rank {
            0 => self.folder.clone(),
            rank => self.folder.join(format!("rank-{rank}")),
        }
    }

    /// The path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The log file of Burn and of the backend.
    pub fn application_log(&self) -> PathBuf {
        self.metrics().join(APPLICATION_LOG)
    }

    /// The settings of the run in this folder.
    pub fn settings(&self) -> Result<TrainConfig> {
        let file = self.folder.join(SETTINGS);
        ensure!(
            file.is_file(),
            "nothing to resume: there is no {}",
            file.display()
        );
        TrainConfig::load(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Locks the folder, which is created if need be, until the lock is dropped.
    ///
    /// # Errors
    ///
    /// Another program trains in it, or it cannot be written.
    pub fn lock(&self) -> Result<Lock> {
        self.write(|| Ok(fs::create_dir_all(&self.folder)?))?;
        Lock::acquire(&self.folder)
    }

    /// Fails if another program trains in the folder, or if it holds a run, which a new one would
    /// overwrite.
    pub fn ensure_free(&self) -> Result<()> {
        ensure!(
            !self.folder.exists() || self.folder.is_dir(),
            "{} is not a folder",
            self.folder.display()
        );
        Lock::ensure_free(&self.folder)?;
        self.ensure_no_run()
    }

    /// The same, once the lock is taken: another program may have begun and ended a run since.
    pub fn ensure_no_run(&self) -> Result<()> {
        // `resume_point` would remove incomplete checkpoints, and the run may still be active.
        let folder = self.folder.display();
        ensure!(
            !self.folder.join(RESULTS).exists(),
            "{folder} holds a finished run: start anew with --overwrite, or choose another --artifact-dir"
        );
        if !entries(&self.folder.join(CHECKPOINTS))?.is_empty() {
            bail!(
                "{folder} holds a run that was interrupted: continue it with --resume, start anew with \
                 --overwrite, or choose another --artifact-dir"
            );
        }
        Ok(())
    }

    /// Creates the folder, removes the files of an earlier run, and writes the settings.
    pub fn start(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| {
            fs::create_dir_all(&self.folder)?;
            for file in [SETTINGS, RESULTS, APPLICATION_LOG].map(|name| self.folder.join(name)) {
                if file.exists() {
                    fs::remove_file(file)?;
                }
            }
            // Removes by name, as the folder may hold other files.
            for checkpoint in entries(&self.folder.join(CHECKPOINTS))? {
                if starts_with(&checkpoint, &CHECKPOINT_FILES) {
                    fs::remove_file(checkpoint)?;
                }
            }
            remove_logs(&self.folder)?;
            for of_rank in entries(&self.folder)? {
                if is_of_rank(&of_rank) {
                    self.remove_rank(&of_rank)?;
                }
            }
            Ok(())
        })?;
        self.save_settings(config)
    }

    /// Writes the settings.
    pub fn save_settings(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| write_json(&self.folder, SETTINGS, config))
    }

    /// Writes the results.
    pub fn save_results(&self, results: &impl Serialize) -> Result<()> {
        self.write(|| write_json(&self.folder, RESULTS, results))
    }

    /// Writes the peak of a process other than the first, which has the results.
    pub fn save_peak(&self, peak: Peak) -> Result<()> {
        let folder = self.metrics();
        writing(&folder, || {
            fs::create_dir_all(&folder)?;
            write_json(&folder, MEMORY, &peak)
        })
    }

    /// The epoch of the newest complete checkpoint.
    ///
    /// # Errors
    ///
    /// A file of it is not as it was saved, or of a run with other settings.
    pub fn resume_point(&self, config: &TrainConfig) -> Result<Option<usize>> {
        resume::resume_point_of_run(&self.folder, config.identity()?)
            .with_context(|| format!("cannot read the checkpoints in {}", self.folder.display()))
    }

    /// The losses in the logs.
    pub fn losses(&self) -> Result<Losses> {
        let summary = LearnerSummary::new(&self.folder, &[LOSS])
            .map_err(|text| anyhow!("cannot read the metrics: {text}"))?;
        let [train, valid] = [summary.metrics.train, summary.metrics.valid].map(|metrics| {
            let losses = metrics.into_iter().flat_map(|metric| metric.entries);
            losses.map(|entry| (entry.step, entry.value)).collect()
        });
        Ok(Losses { train, valid })
    }

    /// Removes what another process of an earlier run has left, which may have had more of them.
    fn remove_rank(&self, folder: &Path) -> Result<()> {
        remove_logs(folder)?;
        for file in [APPLICATION_LOG, MEMORY].map(|name| folder.join(name)) {
            if file.exists() {
                fs::remove_file(file)?;
            }
        }
        // Deepest first. What holds other files stays.
        for left in LOGS.map(|split| folder.join(split)) {
            let _ = fs::remove_dir(left);
        }
        let _ = fs::remove_dir(folder);
        Ok(())
    }

    fn write(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        writing(&self.folder, work)
    }
}

fn remove_logs(folder: &Path) -> Result<()> {
    for split in LOGS {
        for epoch in entries(&folder.join(split))? {
            if starts_with(&epoch, &["epoch-"]) {
                fs::remove_dir_all(epoch)?;
            }
        }
    }
    Ok(())
}

/// Whether a process other than the first of a run has logged there.
fn is_of_rank(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let rank = name.strip_prefix("rank-").map(str::parse::<usize>);
    matches!(rank, Some(Ok(_))) && folder.is_dir()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot list {}", folder.display()))
}

fn starts_with(path: &Path, prefixes: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path());
        assert!(artifacts.ensure_free().is_ok());
        fs::create_dir(folder.path().join("checkpoint")).unwrap();
        assert!(artifacts.ensure_free().is_ok());
        fs::write(folder.path().join("checkpoint/model-1.mpk"), "").unwrap();
        assert!(artifacts.ensure_free().is_err());
        artifacts.save_results(&1).unwrap();
        let text = artifacts.ensure_free().unwrap_err().to_string();
        assert!(text.contains("holds a finished run"), "{text}");
    }

    #[test]
    fn starting_anew_removes_only_the_files_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (ours, others) = (
            [
                "checkpoint/optim-3.mpk",
                "valid/epoch-3/Loss.log",
                "rank-1/train/epoch-3/Loss.log",
                "rank-1/experiment.log",
                "rank-2/memory.json",
                "rank-3/train/epoch-1/Loss.log",
            ],
            [
                "checkpoint/notes",
                "train/cat/1.png",
                "rank-3/notes",
                "rank-other/train/epoch-1/1.png",
            ],
        );
        for file in ours.iter().chain(&others) {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), "").unwrap();
        }
        Artifacts::new(folder.path())
            .start(&TrainConfig::example())
            .unwrap();
        assert!(path(SETTINGS).exists());
        assert!(ours.iter().all(|file| !path(file).exists()));
        assert!(others.iter().all(|file| path(file).exists()));
        assert!(!path("rank-1").exists() && !path("rank-2").exists());
    }
}

//! The folder of a training run: its settings, its results, and what Burn's learner keeps there.

use crate::config::TrainConfig;
use crate::stopping::LOSS;
use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::config::Config;
use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::NumericEntry;
use burn::train::metric::store::Split;
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
/// That of Burn's default recorder.
const EXTENSION: &str = "mpk";
const LOGS: [&str; 2] = ["train", "valid"];
const APPLICATION_LOG: &str = "experiment.log";

/// The folder of one training run.
#[derive(Clone, Debug)]
pub struct Artifacts {
    folder: PathBuf,
    /// Of several processes, the first alone writes settings, checkpoints and results.
    rank: usize,
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

    /// Fails if a new run must not begin in the folder. Writes nothing.
    ///
    /// # Errors
    ///
    /// Another program trains in it, its settings are of another program, or it holds a run, which
    /// only `overwrite` allows.
    pub fn ensure_free(&self, overwrite: bool) -> Result<()> {
        ensure!(
            !self.folder.exists() || self.folder.is_dir(),
            "{} is not a folder",
            self.folder.display()
        );
        Lock::ensure_free(&self.folder)?;
        self.ensure_no_run(overwrite)
    }

    /// The same, once the lock is taken: another program may have begun and ended a run since.
    pub fn ensure_no_run(&self, overwrite: bool) -> Result<()> {
        let settings = self.folder.join(SETTINGS);
        ensure!(
            !settings.exists() || TrainConfig::load(&settings).is_ok(),
            "{} is of another program: choose another --artifact-dir",
            settings.display()
        );
        if overwrite {
            return Ok(());
        }
        // `resume_point` would take incomplete checkpoints away, and the run may still be active.
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

    /// Removes the checkpoint of an epoch, if there is one. Its checksums go when the next one is
    /// saved.
    ///
    /// # Errors
    ///
    /// Names the file that cannot be removed.
    pub fn remove_checkpoint(&self, epoch: usize) -> Result<()> {
        let folder = self.folder.join(CHECKPOINTS);
        for part in CHECKPOINT_FILES {
            let file = folder.join(format!("{part}{epoch}.{EXTENSION}"));
            if file.exists() {
                fs::remove_file(&file).with_context(|| file.display().to_string())?;
            }
        }
        Ok(())
    }

    /// The mean loss that was logged for an epoch.
    ///
    /// # Errors
    ///
    /// A line of the log is no loss.
    pub fn loss(&self, epoch: usize, split: &Split) -> Result<Option<f64>> {
        // Burn's `LearnerSummary` looks at all that is in the folder, and panics at a link that
        // leads nowhere.
        let entries = FileMetricLogger::new(&self.folder)
            .read_numeric(LOSS, epoch, split)
            .map_err(|text| anyhow!("cannot read the {split} losses of epoch {epoch}: {text}"))?;
        Ok(mean(&entries))
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

/// The mean over items, added up in the order of Burn's `Aggregate::Mean`.
fn mean(entries: &[NumericEntry]) -> Option<f64> {
    let sums = entries.iter().map(|entry| match entry {
        NumericEntry::Value(value) => (*value, 1),
        NumericEntry::Aggregated {
            aggregated_value,
            count,
        } => (aggregated_value * *count as f64, *count),
    });
    let (sum, items) = sums.reduce(|(sum, items), (value, count)| (sum + value, items + count))?;
    Some(sum / items as f64)
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
    fn losses_are_read_from_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path());
        let log = folder.path().join("train/epoch-2");
        fs::create_dir_all(&log).unwrap();
        fs::write(log.join("Loss.log"), "2,3\n1,1\n").unwrap();
        let loss = |epoch, split| artifacts.loss(epoch, &split).unwrap();
        assert_eq!(loss(2, Split::Train), Some(1.75));
        assert_eq!(loss(1, Split::Train), None);
        assert_eq!(loss(2, Split::Valid), None);
        fs::write(log.join("Loss.log"), "no loss\n").unwrap();
        assert!(artifacts.loss(2, &Split::Train).is_err());
    }

    #[test]
    fn a_checkpoint_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = folder.path().join(CHECKPOINTS);
        fs::create_dir(&checkpoints).unwrap();
        let old = ["model-1.mpk", "optim-1.mpk"];
        let others = ["model-1.mpk.bak", "model-2.mpk", "scheduler-10.mpk"];
        for name in old.iter().chain(&others) {
            fs::write(checkpoints.join(name), "").unwrap();
        }
        Artifacts::new(folder.path()).remove_checkpoint(1).unwrap();
        let is_left = |name: &&str| checkpoints.join(name).exists();
        assert!(others.iter().all(is_left) && !old.iter().any(is_left));
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

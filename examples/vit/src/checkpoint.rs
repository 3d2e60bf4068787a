//! The folder of a training run: its settings, its newest checkpoint, its results.
//!
//! Whatever appears here under its final name is whole: it is written under another name and then
//! renamed, which a file system does at once or not at all.

use crate::config::TrainConfig;
use crate::mode::{self, Stepper};
use crate::model::Vit;
use crate::train::Progress;
use anyhow::{Context, Result, bail, ensure};
use burn::config::Config;
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::module::Module;
use burn::tensor::Device;
use burn::tensor::backend::AutodiffBackend;
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const SETTINGS: &str = "config.json";
const RESULTS: &str = "results.json";
const CHECKPOINT: &str = "checkpoint-";
/// Whatever begins so was never finished.
const UNFINISHED: &str = "unfinished-";

/// The folder of one training run.
#[derive(Clone, Debug)]
pub struct Artifacts {
    folder: PathBuf,
}

impl Artifacts {
    /// Names the folder; nothing is read or written yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The settings of the run that is here.
    pub fn settings(&self) -> Result<TrainConfig> {
        let file = self.folder.join(SETTINGS);
        ensure!(
            file.is_file(),
            "nothing to resume: there is no {}",
            file.display()
        );
        TrainConfig::load(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Refuses to start anew where an interrupted run waits.
    pub fn ensure_free(&self) -> Result<()> {
        ensure!(
            !self.folder.exists() || self.folder.is_dir(),
            "{} is not a folder",
            self.folder.display()
        );
        if self.newest()?.is_some() && !self.folder.join(RESULTS).exists() {
            bail!(
                "{} holds a run that was interrupted: continue it with --resume, start anew with \
                 --overwrite, or choose another --artifact-dir",
                self.folder.display()
            );
        }
        Ok(())
    }

    /// Makes the folder, empties it of an earlier run, and writes the settings.
    pub fn start(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| {
            fs::create_dir_all(&self.folder)?;
            for name in [SETTINGS, RESULTS] {
                let file = self.folder.join(name);
                if file.exists() {
                    fs::remove_file(file)?;
                }
            }
            for (_, checkpoint) in self.checkpoints()? {
                fs::remove_dir_all(checkpoint)?;
            }
            Ok(())
        })?;
        self.save_settings(config)
    }

    /// Writes the settings.
    pub fn save_settings(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| self.write_json(SETTINGS, config))
    }

    /// Writes the results.
    pub fn save_results(&self, results: &impl Serialize) -> Result<()> {
        self.write(|| self.write_json(RESULTS, results))
    }

    /// Writes a checkpoint and removes those before it.
    pub fn save<B: AutodiffBackend>(
        &self,
        progress: &Progress,
        model: &Vit<B>,
        optimizer: &dyn Stepper<B>,
        scheduler: &ComposedLrScheduler,
    ) -> Result<()> {
        let last = self
            .folder
            .join(format!("{CHECKPOINT}{:08}", progress.step));
        self.write(|| {
            self.clear_unfinished()?;
            let unfinished = self.folder.join(format!("{UNFINISHED}{CHECKPOINT}"));
            fs::create_dir(&unfinished)?;
            mode::save::<B, _>(model.clone().into_record(), &unfinished.join("model"))?;
            optimizer.save(&unfinished.join("optimizer"))?;
            mode::save::<B, _>(scheduler.to_record::<B>(), &unfinished.join("scheduler"))?;
            write_synced(&unfinished.join("progress.json"), progress)?;

            let older = self.checkpoints()?;
            // The same step again, as after a stop between the step and the validation.
            if last.exists() {
                fs::remove_dir_all(&last)?;
            }
            fs::rename(&unfinished, &last)?;
            for (_, checkpoint) in older.into_iter().filter(|(step, _)| *step != progress.step) {
                fs::remove_dir_all(checkpoint)?;
            }
            Ok(())
        })
    }

    /// Puts the newest checkpoint into a freshly built run.
    pub fn load<B: AutodiffBackend>(
        &self,
        model: Vit<B>,
        optimizer: &mut dyn Stepper<B>,
        scheduler: ComposedLrScheduler,
        device: &Device<B>,
    ) -> Result<(Progress, Vit<B>, ComposedLrScheduler)> {
        let Some((_, checkpoint)) = self.newest()? else {
            bail!("{} holds no checkpoint", self.folder.display());
        };
        let progress = checkpoint.join("progress.json");
        let progress = File::open(&progress)
            .map_err(anyhow::Error::from)
            .and_then(|file| Ok(serde_json::from_reader(file)?))
            .with_context(|| format!("cannot read {}", progress.display()))?;
        let record = mode::load::<B, _>(&checkpoint.join("model"), device)?;
        optimizer.load(&checkpoint.join("optimizer"), device)?;
        let scheduler_record = mode::load::<B, _>(&checkpoint.join("scheduler"), device)?;
        Ok((
            progress,
            model.load_record(record),
            scheduler.load_record::<B>(scheduler_record),
        ))
    }

    /// The number of steps behind the newest checkpoint, and its folder.
    pub fn newest(&self) -> Result<Option<(usize, PathBuf)>> {
        Ok(self.checkpoints()?.into_iter().max())
    }

    fn checkpoints(&self) -> Result<Vec<(usize, PathBuf)>> {
        Ok(self
            .entries()?
            .into_iter()
            .filter_map(|(name, path)| {
                let step = name.strip_prefix(CHECKPOINT)?.parse().ok()?;
                Some((step, path))
            })
            .collect())
    }

    fn clear_unfinished(&self) -> Result<()> {
        for (name, path) in self.entries()? {
            if name.starts_with(UNFINISHED) {
                if path.is_dir() {
                    fs::remove_dir_all(path)?;
                } else {
                    fs::remove_file(path)?;
                }
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<(String, PathBuf)>> {
        if !self.folder.exists() {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)
            .with_context(|| format!("cannot list {}", self.folder.display()))?
        {
            let entry = entry?;
            entries.push((
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            ));
        }
        Ok(entries)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let unfinished = self.folder.join(format!("{UNFINISHED}{name}"));
        write_synced(&unfinished, value)?;
        Ok(fs::rename(unfinished, self.folder.join(name))?)
    }

    fn write(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        work().with_context(|| format!("cannot write to {}", self.folder.display()))
    }
}

fn write_synced(file: &Path, value: &impl Serialize) -> Result<()> {
    let mut out = File::create(file)?;
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(out.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_checkpoint_is_the_one_with_most_steps() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "checkpoint-00000900",
            "checkpoint-00001000",
            "unfinished-checkpoint-",
            "checkpoint-mine",
        ] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let newest = Artifacts::new(folder.path()).newest().unwrap();
        assert_eq!(newest.unwrap().0, 1000);
    }

    #[test]
    fn an_interrupted_run_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path());
        assert!(artifacts.ensure_free().is_ok());
        fs::create_dir(folder.path().join("checkpoint-00000001")).unwrap();
        assert!(artifacts.ensure_free().is_err());
        artifacts.save_results(&1).unwrap();
        assert!(artifacts.ensure_free().is_ok());
    }
}

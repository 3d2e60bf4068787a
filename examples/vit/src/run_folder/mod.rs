//! The folder of a training run: its settings, its checkpoints and its results.
//!
//! ```text
//! config.json             the settings
//! checkpoint/epoch-3/     the newest checkpoints
//! results.json            once the run has ended
//! lock                    locked while a program uses the folder
//! ```

mod checkpoint;

pub use checkpoint::{Checkpoint, Finished};

use crate::config::TrainConfig;
use crate::release::Stepper;
use crate::train::Results;
use anyhow::{Context, Result, bail, ensure};
use burn::module::Module;
use burn_lean::{DataParallel, ReleaseError, ReplicaError};
use checkpoint::Checkpoints;
use std::path::{Path, PathBuf};
use std::{fs, io};
use vit_common::files::{CannotWrite, write_json, writing};
use vit_common::lock::Lock;

const SETTINGS: &str = "config.json";
const RESULTS: &str = "results.json";
const CHECKPOINTS: &str = "checkpoint";

/// The folder of a run, which no other program uses meanwhile. Of several processes of a run, the
/// first has it; the others [read](Self::read) what it has written.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    checkpoints: Checkpoints,
    _lock: Option<Lock>,
}

impl RunFolder {
    /// The folder for a new run, and no change to it but its lock.
    ///
    /// # Errors
    ///
    /// See [`ensure_free`](Self::ensure_free); or another program has just begun a run in it.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self> {
        Self::ensure_free(path, overwrite)?;
        writing(path, || Ok(fs::create_dir_all(path)?))?;
        let folder = Self::locked(path)?;
        // Another program may have begun and ended a run since.
        Self::ensure_no_run(path, overwrite)?;
        Ok(folder)
    }

    /// The folder of a run to resume.
    ///
    /// # Errors
    ///
    /// There is no run in it, or another program uses it.
    pub fn open(path: &Path) -> Result<Self> {
        ensure_settings(path)?;
        Self::locked(path)
    }

    /// Fails if a program uses the folder, or if it holds a run, which a new one would overwrite.
    /// Writes nothing.
    pub fn ensure_free(path: &Path, overwrite: bool) -> Result<()> {
        ensure!(
            !path.exists() || path.is_dir(),
            "{} is not a folder",
            path.display()
        );
        locking(Lock::ensure_free(path))?;
        Self::ensure_no_run(path, overwrite)
    }

    fn ensure_no_run(path: &Path, overwrite: bool) -> Result<()> {
        let settings = path.join(SETTINGS);
        if settings.exists() && read_settings(&settings).is_err() {
            bail!(
                "{} is of another program: choose another --artifact-dir",
                settings.display()
            );
        }
        if overwrite {
            return Ok(());
        }
        let folder = path.display();
        ensure!(
            !path.join(RESULTS).exists(),
            "{folder} holds a finished run: start anew with --overwrite, or choose another --artifact-dir"
        );
        let checkpoints = Checkpoints::new(path.join(CHECKPOINTS));
        ensure!(
            checkpoints.newest()?.is_none(),
            "{folder} holds a run that was interrupted: continue it with --resume, start anew with \
             --overwrite, or choose another --artifact-dir"
        );
        Ok(())
    }

    fn locked(path: &Path) -> Result<Self> {
        Ok(Self {
            _lock: Some(locking(Lock::acquire(path))?),
            ..Self::read(path)
        })
    }

    /// The folder of a run that another process has.
    pub fn read(path: &Path) -> Self {
        Self {
            _lock: None,
            path: path.to_path_buf(),
            checkpoints: Checkpoints::new(path.join(CHECKPOINTS)),
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The settings of the run in this folder.
    ///
    /// # Errors
    ///
    /// There is no run in it, or its settings cannot be read.
    pub fn settings(&self) -> Result<TrainConfig> {
        ensure_settings(&self.path)?;
        let file = self.path.join(SETTINGS);
        read_settings(&file).with_context(|| {
            format!(
                "{} cannot be read: start anew with another --artifact-dir",
                file.display()
            )
        })
    }

    /// Removes the files of an earlier run and writes the settings.
    pub fn start(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| {
            for file in [SETTINGS, RESULTS].map(|name| self.path.join(name)) {
                if file.exists() {
                    fs::remove_file(file)?;
                }
            }
            self.checkpoints.clear()
        })?;
        self.save_settings(config)
    }

    /// Writes the settings.
    pub fn save_settings(&self, config: &TrainConfig) -> Result<()> {
        self.write(|| write_json(&self.path, SETTINGS, config))
    }

    /// Writes the results.
    pub fn save_results(&self, results: &Results) -> Result<()> {
        self.write(|| write_json(&self.path, RESULTS, results))
    }

    /// Writes the checkpoint of an epoch, and keeps the one before it. Of several processes, the
    /// first calls it, and the others [take part](Self::take_part_in_save).
    ///
    /// # Errors
    ///
    /// [`CannotWrite`]; or the processes do not do the same.
    pub fn save(
        &self,
        config: &TrainConfig,
        parallel: Option<&DataParallel>,
        finished: Finished<'_, impl Module>,
    ) -> Result<()> {
        let run = config.identity()?;
        match self.checkpoints.save(&run, parallel, finished) {
            Err(error) if error.is::<ReplicaError>() || error.is::<ReleaseError>() => Err(error),
            saved => self.write(|| saved),
        }
    }

    /// What a process other than the first does while that one [saves](Self::save): it brings its
    /// optimizer states.
    ///
    /// # Errors
    ///
    /// The processes do not do the same.
    pub fn take_part_in_save(
        &self,
        parallel: Option<&DataParallel>,
        optimizer: &Stepper,
    ) -> Result<()> {
        optimizer.save(parallel, &self.path)
    }

    /// The newest checkpoint.
    ///
    /// # Errors
    ///
    /// One of its files is not as it was written, or of a run with other settings.
    pub fn newest(&self, config: &TrainConfig) -> Result<Option<Checkpoint>> {
        self.checkpoints.read_newest(&config.identity()?)
    }

    fn write(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        writing(&self.path, work)
    }
}

/// A lock that cannot be written is as any other file that cannot. One that another program has is
/// not.
fn locking<T>(lock: Result<T>) -> Result<T> {
    lock.map_err(|error| match error.root_cause().is::<io::Error>() {
        true => CannotWrite(format!("{error:#}")).into(),
        false => error,
    })
}

fn ensure_settings(folder: &Path) -> Result<()> {
    let file = folder.join(SETTINGS);
    ensure!(
        file.is_file(),
        "nothing to resume: there is no {}",
        file.display()
    );
    Ok(())
}

fn read_settings(file: &Path) -> Result<TrainConfig> {
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

//! The checkpoints of a run, one folder for each epoch.
//!
//! A checkpoint is written to a folder under another name, which is then renamed. So a folder with
//! the name of an epoch is complete.

use crate::release::Stepper;
use anyhow::{Context, Result, bail, ensure};
use burn::module::Module;
use burn::store::ModuleRecord;
use burn_lean::DataParallel;
use lean_checkpoint_files::checksum;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use vit_common::digest;
use vit_common::files::write_json;

/// With a single checkpoint there would be none while the old one is replaced.
const KEPT: usize = 2;

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optim.bpk";
const STATE: &str = "state.json";
/// A checkpoint that is being written or removed.
const UNFINISHED: &str = "unfinished";

/// The folder of the checkpoints.
#[derive(Debug)]
pub(super) struct Checkpoints(PathBuf);

/// What a checkpoint knows besides the tensors.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    /// The epoch after which it was written.
    epoch: usize,
    /// Mean loss of the training batches in that epoch.
    train_loss: f64,
    /// SHA-256 of the file of the weights.
    model_digest: String,
    /// SHA-256 of the file of the optimizer states.
    optim_digest: String,
    /// SHA-256 of what tells the run from others. Checkpoints of before have none.
    #[serde(default)]
    run_digest: Option<String>,
}

/// What is saved after an epoch.
#[allow(missing_debug_implementations)] // Burn's optimizer has none.
pub struct Finished<'a, M> {
    /// The epoch.
    pub epoch: usize,
    /// Mean loss of its training batches.
    pub train_loss: f64,
    /// The model.
    pub model: &'a M,
    /// The optimizer.
    pub optimizer: &'a Stepper,
}

/// A checkpoint whose files are as they were written.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    state: State,
}

impl Checkpoints {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The epoch of the newest checkpoint.
    pub(super) fn newest(&self) -> Result<Option<usize>> {
        Ok(self.epochs()?.last().copied())
    }

    pub(super) fn read_newest(&self, run: &str) -> Result<Option<Checkpoint>> {
        let epochs = self.epochs()?;
        let Some(epoch) = epochs.last() else {
            return Ok(None);
        };
        let folder = self.of(*epoch);
        let what = match Checkpoint::read(folder.clone(), *epoch) {
            Ok(checkpoint) if checkpoint.is_of(run) => return Ok(Some(checkpoint)),
            Ok(_) => "was saved by a run with other settings".to_string(),
            Err(reason) => format!("is damaged ({reason:#})"),
        };
        let mut older = epochs.iter().rev().skip(1);
        let whole = older.find(|epoch| {
            let read = Checkpoint::read(self.of(**epoch), **epoch);
            read.is_ok_and(|checkpoint| checkpoint.is_of(run))
        });
        let way_out = match whole {
            None => "start anew with --overwrite".to_string(),
            Some(whole) => format!(
                "the checkpoint of epoch {whole} is whole: remove the folders of later ones to continue \
                 after epoch {whole}, or start anew with --overwrite"
            ),
        };
        bail!("{} {what}: {way_out}", folder.display())
    }

    pub(super) fn save(
        &self,
        run: &str,
        parallel: Option<&DataParallel>,
        finished: Finished<'_, impl Module>,
    ) -> Result<()> {
        let unfinished = self.0.join(UNFINISHED);
        let saved = self.write(&unfinished, run, parallel, finished);
        if saved.is_err() {
            // Makes room, and says nothing of its own: the error that counts is there.
            let _ = remove(&unfinished);
        }
        saved
    }

    fn write(
        &self,
        unfinished: &Path,
        run: &str,
        parallel: Option<&DataParallel>,
        finished: Finished<'_, impl Module>,
    ) -> Result<()> {
        remove(unfinished)?;
        fs::create_dir_all(unfinished)?;
        let [model_file, optim_file] = [MODEL, OPTIMIZER].map(|name| unfinished.join(name));
        finished.model.clone().into_record().save(&model_file)?;
        finished.optimizer.save(parallel, &optim_file)?;
        let state = State {
            epoch: finished.epoch,
            train_loss: finished.train_loss,
            model_digest: digest_on_disk(&model_file)?,
            optim_digest: digest_on_disk(&optim_file)?,
            run_digest: Some(digest::bytes(run.as_bytes())),
        };
        write_json(unfinished, STATE, &state)?;
        sync(unfinished)?;
        fs::rename(unfinished, self.of(finished.epoch))?;
        sync(&self.0)?;
        for old in self.epochs()?.into_iter().rev().skip(KEPT) {
            self.remove(old)?;
        }
        Ok(())
    }

    /// Removes all checkpoints, and nothing else that is in the folder.
    pub(super) fn clear(&self) -> Result<()> {
        remove(&self.0.join(UNFINISHED))?;
        // From the oldest on: what is left of an interruption has a newest checkpoint that is
        // complete.
        self.epochs()?
            .into_iter()
            .try_for_each(|epoch| self.remove(epoch))
    }

    fn remove(&self, epoch: usize) -> Result<()> {
        let unfinished = self.0.join(UNFINISHED);
        fs::rename(self.of(epoch), &unfinished)?;
        remove(&unfinished)
    }

    /// The epochs that have a checkpoint, in order.
    fn epochs(&self) -> Result<Vec<usize>> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        let cannot = || format!("cannot list {}", self.0.display());
        let mut epochs = Vec::new();
        for entry in fs::read_dir(&self.0).with_context(cannot)? {
            let name = entry.with_context(cannot)?.file_name();
            let name = name.to_string_lossy();
            epochs.extend(
                name.strip_prefix("epoch-")
                    .and_then(|n| n.parse::<usize>().ok()),
            );
        }
        epochs.sort_unstable();
        Ok(epochs)
    }

    fn of(&self, epoch: usize) -> PathBuf {
        self.0.join(format!("epoch-{epoch}"))
    }
}

impl Checkpoint {
    /// A checkpoint whose files are as they were written.
    fn read(folder: PathBuf, epoch: usize) -> Result<Self> {
        let bytes = fs::read(folder.join(STATE)).context(STATE)?;
        let state: State = serde_json::from_slice(&bytes).context(STATE)?;
        ensure!(state.epoch == epoch, "{STATE} is of epoch {}", state.epoch);
        for (name, written) in [
            (MODEL, &state.model_digest),
            (OPTIMIZER, &state.optim_digest),
        ] {
            let found = checksum::digest(&folder.join(name)).context(name)?;
            ensure!(found == *written, "{name} is not as it was written");
        }
        Ok(Self { folder, state })
    }

    /// Whether a run with these settings has saved it.
    fn is_of(&self, run: &str) -> bool {
        let run = digest::bytes(run.as_bytes());
        self.state
            .run_digest
            .as_ref()
            .is_none_or(|saved| *saved == run)
    }

    /// The epoch after which it was written.
    pub fn epoch(&self) -> usize {
        self.state.epoch
    }

    /// Mean loss of the training batches in that epoch.
    pub fn train_loss(&self) -> f64 {
        self.state.train_loss
    }

    /// The model of the checkpoint.
    pub fn load_model<M: Module>(&self, model: M) -> Result<M> {
        let record = ModuleRecord::load(self.folder.join(MODEL));
        let record = record.with_context(|| self.cannot())?;
        model.try_load_record(record).with_context(|| self.cannot())
    }

    /// The optimizer of the checkpoint. Of several processes, each has to know the model by now.
    pub fn load_optimizer(
        &self,
        optimizer: Stepper,
        parallel: Option<&DataParallel>,
    ) -> Result<Stepper> {
        let loaded = optimizer.load(parallel, &self.folder.join(OPTIMIZER));
        loaded.with_context(|| self.cannot())
    }

    fn cannot(&self) -> String {
        format!("cannot load {}", self.folder.display())
    }
}

/// Waits until the file is on the disk; returns its SHA-256.
fn digest_on_disk(file: &Path) -> Result<String> {
    sync(file)?;
    Ok(checksum::digest(file)?)
}

/// Waits until the file or the entries of the folder are on the disk.
fn sync(path: &Path) -> Result<()> {
    // Windows opens no folders, and writes renames in order.
    if path.is_file() || cfg!(unix) {
        File::open(path)?.sync_all()?;
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

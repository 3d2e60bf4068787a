//! The checkpoints of a run, one folder for each epoch.
//!
//! A checkpoint is written to a folder under another name, which is then renamed. So a folder with
//! the name of an epoch is complete.

use crate::release::Stepper;
use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
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
        let read = Checkpoint::read(folder.clone(), *epoch, run).with_context(|| {
            let mut older = epochs.iter().rev().skip(1);
            let whole = older.find(|epoch| Checkpoint::read(self.of(**epoch), **epoch, run).is_ok());
            let way_out = match whole {
                None => "start anew with --overwrite".to_string(),
                Some(whole) => format!(
                    "the checkpoint of epoch {whole} is whole: remove the folders of later ones to continue \
                     after epoch {whole}, or start anew with --overwrite"
                ),
            };
            format!("{} is damaged: {way_out}", folder.display())
        });
        read.map(Some)
    }

    pub(super) fn save(
        &self,
        run: &str,
        epoch: usize,
        train_loss: f64,
        model: &impl Module,
        optimizer: OptimizerRecord,
    ) -> Result<()> {
        let unfinished = self.0.join(UNFINISHED);
        remove(&unfinished)?;
        fs::create_dir_all(&unfinished)?;
        let [model_file, optim_file] = [MODEL, OPTIMIZER].map(|name| unfinished.join(name));
        model.clone().into_record().save(&model_file)?;
        optimizer.save(&optim_file)?;
        let state = State {
            epoch,
            train_loss,
            model_digest: digest_on_disk(&model_file)?,
            optim_digest: digest_on_disk(&optim_file)?,
            run_digest: Some(digest::bytes(run.as_bytes())),
        };
        write_json(&unfinished, STATE, &state)?;
        sync(&unfinished)?;
        fs::rename(unfinished, self.of(epoch))?;
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
    fn read(folder: PathBuf, epoch: usize, run: &str) -> Result<Self> {
        let bytes = fs::read(folder.join(STATE)).context(STATE)?;
        let state: State = serde_json::from_slice(&bytes).context(STATE)?;
        ensure!(state.epoch == epoch, "{STATE} is of epoch {}", state.epoch);
        for (name, digest) in [
            (MODEL, &state.model_digest),
            (OPTIMIZER, &state.optim_digest),
        ] {
            let bytes = fs::read(folder.join(name)).context(name)?;
            ensure!(
                digest::bytes(&bytes) == *digest,
                "{name} is not as it was written"
            );
        }
        let run = digest::bytes(run.as_bytes());
        ensure!(
            state.run_digest.as_ref().is_none_or(|saved| *saved == run),
            "it was saved by a run with other settings"
        );
        Ok(Self { folder, state })
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
    pub fn load_optimizer(&self, optimizer: Stepper) -> Result<Stepper> {
        let record = OptimizerRecord::load(self.folder.join(OPTIMIZER));
        let record = record.with_context(|| self.cannot())?;
        Ok(optimizer.load_record(record))
    }

    fn cannot(&self) -> String {
        format!("cannot load {}", self.folder.display())
    }
}

/// Waits until the file is on the disk; returns its SHA-256.
fn digest_on_disk(file: &Path) -> Result<String> {
    sync(file)?;
    Ok(digest::bytes(&fs::read(file)?))
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

//! Where to resume.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use super::UNFINISHED;

/// The files that Burn's file checkpointer writes for an epoch.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch of which model, optimizer and scheduler were all saved: what to give to
/// `.checkpoint(..)`. `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`. What a save that was killed has left
/// behind is removed, lest a later save complete it with files of another run: unfinished files,
/// and the files of epochs after the resume point that are not complete.
///
/// Files count as whole: write them with an [`AtomicFileRecorder`](super::AtomicFileRecorder).
///
/// # Errors
///
/// If the folder of checkpoints cannot be read, or a file in it not removed.
pub fn resume_point(directory: impl AsRef<Path>) -> io::Result<Option<usize>> {
    let folder = directory.as_ref().join("checkpoint");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut epochs: BTreeMap<usize, Epoch> = BTreeMap::new();
    for entry in entries {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(UNFINISHED) {
            fs::remove_file(&file)?;
        } else if let Some((part, epoch, extension)) = parse(&name) {
            let epoch = epochs.entry(epoch).or_default();
            let parts = epoch.parts.entry(extension.to_owned()).or_default();
            parts.insert(part);
            epoch.files.push(file);
        }
    }
    let complete = |epoch: &Epoch| epoch.parts.values().any(|parts| parts.len() == PARTS.len());
    let newest = epochs
        .iter()
        .rev()
        .find_map(|(number, epoch)| complete(epoch).then_some(*number));
    for (_, epoch) in epochs.iter().filter(|(number, _)| Some(**number) > newest) {
        for file in &epoch.files {
            fs::remove_file(file)?;
        }
    }
    Ok(newest)
}

#[derive(Default)]
struct Epoch {
    /// By extension: parts of different recorders make no checkpoint.
    parts: BTreeMap<String, BTreeSet<&'static str>>,
    files: Vec<PathBuf>,
}

/// `model-3.mpk.gz` is the model of epoch 3.
fn parse(name: &str) -> Option<(&'static str, usize, &str)> {
    PARTS.iter().find_map(|part| {
        let (epoch, extension) = name
            .strip_prefix(part)?
            .strip_prefix('-')?
            .split_once('.')?;
        Some((*part, epoch.parse().ok()?, extension))
    })
}

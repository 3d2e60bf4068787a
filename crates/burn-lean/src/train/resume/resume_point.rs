//! The epoch from which to resume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The files that Burn writes for an epoch.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch of which model, optimizer and scheduler were all saved, for `.checkpoint(..)`.
/// `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`, with the checkpointers of
/// `with_default_checkpointers`. Removes the remains of a killed save, so that a later save does
/// not complete them with files of another run: Burn's unfinished files, and incomplete epochs
/// after the resume point.
///
/// # Errors
///
/// If the folder of checkpoints cannot be read, or a file in it cannot be removed.
///
/// # Example
///
/// ```
/// use burn_lean::train::resume::resume_point;
///
/// // For `.checkpoint(epoch)`, and `ResumedDataLoader::new(loader, epoch + 1)`.
/// assert_eq!(resume_point("a/run/that/never/was")?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
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
        if is_unfinished(&name) {
            fs::remove_file(&file)?;
        } else if let Some((part, epoch)) = parse(&name) {
            let epoch = epochs.entry(epoch).or_default();
            epoch.parts.insert(part);
            epoch.files.push(file);
        }
    }
    let is_complete = |epoch: &Epoch| epoch.parts.len() == PARTS.len();
    let newest = epochs
        .iter()
        .rev()
        .find_map(|(number, epoch)| is_complete(epoch).then_some(*number));
    for (_, epoch) in epochs.iter().filter(|(number, _)| Some(**number) > newest) {
        for file in &epoch.files {
            fs::remove_file(file)?;
        }
    }
    Ok(newest)
}

#[derive(Default)]
struct Epoch {
    parts: BTreeSet<&'static str>,
    files: Vec<PathBuf>,
}

/// `model-3.bpk` is the model of epoch 3.
fn parse(name: &str) -> Option<(&'static str, usize)> {
    PARTS.iter().find_map(|part| {
        let epoch = name
            .strip_prefix(part)?
            .strip_prefix('-')?
            .strip_suffix(".bpk")?;
        Some((*part, epoch.parse().ok()?))
    })
}

/// Whether it is a file that Burn has not renamed yet: `model-3.bpk.4711-0.tmp`.
fn is_unfinished(name: &str) -> bool {
    let written = name
        .strip_suffix(".tmp")
        .and_then(|name| name.rsplit_once('.'));
    written.is_some_and(|(name, _)| parse(name).is_some())
}

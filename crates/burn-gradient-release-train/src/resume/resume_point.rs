//! Where to resume.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    UNFINISHED,
    checksum::{self, digest_of_run},
    disk::remove,
};

/// The files that Burn's file checkpointer writes for an epoch.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch of which model, optimizer and scheduler were all saved: what to give to
/// `.checkpoint(..)`. `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`. What a save that was killed has left
/// behind is removed, lest a later save complete it with files of another run: unfinished files,
/// and the files of epochs after the resume point that are not complete.
///
/// Files count as whole: write them with an [`AtomicFileRecorder`](super::AtomicFileRecorder),
/// whose checksums are compared.
///
/// # Errors
///
/// If the folder of checkpoints cannot be read, or a file in it not removed. Of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData) if a file of that epoch is not as it was saved: the
/// text names the file, and the newest older epoch that is.
pub fn resume_point(directory: impl AsRef<Path>) -> io::Result<Option<usize>> {
    checked(directory.as_ref(), None)
}

/// The same for a run whose files were saved with
/// [`AtomicFileRecorder::of_run`](super::AtomicFileRecorder::of_run) with these settings.
///
/// # Errors
///
/// Those of [`resume_point`], and if a file was saved by a run with other settings.
pub fn resume_point_of_run(
    directory: impl AsRef<Path>,
    settings: impl AsRef<[u8]>,
) -> io::Result<Option<usize>> {
    let run = digest_of_run(settings.as_ref());
    checked(directory.as_ref(), Some(&run))
}

fn checked(directory: &Path, run: Option<&str>) -> io::Result<Option<usize>> {
    let folder = directory.join("checkpoint");
    let epochs = tidied(&folder)?;
    let Some((newest, of_newest)) = epochs.last_key_value() else {
        return Ok(None);
    };
    let Err(error) = verify(of_newest, run) else {
        return Ok(Some(*newest));
    };
    if error.kind() != io::ErrorKind::InvalidData {
        return Err(error);
    }
    let mut older = epochs.range(..newest).rev();
    let whole = older.find(|(_, files)| verify(files, run).is_ok());
    let way_out = match whole {
        Some((whole, _)) => format!(
            "the checkpoint of epoch {whole} is whole: to go on from there, remove the files of later epochs \
             from {}",
            folder.display()
        ),
        None => "there is no older checkpoint that is whole: start anew".into(),
    };
    Err(io::Error::new(error.kind(), format!("{error}; {way_out}")))
}

fn verify(files: &[PathBuf], run: Option<&str>) -> io::Result<()> {
    files
        .iter()
        .try_for_each(|file| checksum::verify(file, run))
}

/// The files of the epochs that are complete. Removes what a save that was killed has left behind.
fn tidied(folder: &Path) -> io::Result<BTreeMap<usize, Vec<PathBuf>>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut epochs: BTreeMap<usize, Epoch> = BTreeMap::new();
    for entry in entries {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(UNFINISHED) {
            remove(&file)?;
        } else if let Some((part, epoch, extension)) = parse(&name) {
            let epoch = epochs.entry(epoch).or_default();
            let parts = epoch.parts.entry(extension.to_owned()).or_default();
            parts.insert(part);
            epoch.files.push(file);
        }
    }
    let mut newest_first = epochs.iter().rev();
    let newest = newest_first.find(|(_, epoch)| epoch.is_complete());
    let newest = newest.map(|(number, _)| *number);
    for (_, epoch) in epochs.iter().filter(|(number, _)| Some(**number) > newest) {
        for file in &epoch.files {
            remove(file)?;
            remove(&checksum::path_of(file))?;
        }
    }
    checksum::remove_orphans(folder)?;
    let complete = epochs.into_iter().filter(|(_, epoch)| epoch.is_complete());
    Ok(complete
        .map(|(number, epoch)| (number, epoch.files))
        .collect())
}

#[derive(Default)]
struct Epoch {
    /// By extension: parts of different recorders make no checkpoint.
    parts: BTreeMap<String, BTreeSet<&'static str>>,
    files: Vec<PathBuf>,
}

impl Epoch {
    fn is_complete(&self) -> bool {
        self.parts.values().any(|parts| parts.len() == PARTS.len())
    }
}

/// `model-3.mpk.gz` is the model of epoch 3.
fn parse(name: &str) -> Option<(&'static str, usize, &str)> {
    if name.ends_with(checksum::EXTENSION) {
        return None;
    }
    PARTS.iter().find_map(|part| {
        let (epoch, extension) = name
            .strip_prefix(part)?
            .strip_prefix('-')?
            .split_once('.')?;
        Some((*part, epoch.parse().ok()?, extension))
    })
}

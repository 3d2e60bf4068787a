//! Where to resume.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    UNFINISHED,
    checksum::{self, digest_of_run},
    disk::remove,
};

/// The files that Burn's file checkpointer writes for an epoch.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch of which model, optimizer and scheduler were all saved. `None` if there is none.
///
/// The parts are named as Burn's file checkpointer names them, `model-3.<extension>`: with this
/// extension, or with any, if it is none. `settings` is what tells this run from others. What a save
/// that was killed has left behind is removed: unfinished files, and the files of epochs after the
/// resume point that are not complete.
///
/// # Errors
///
/// If the folder cannot be read, or a file in it not removed. Of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData) if a file of that epoch is not as it was saved, or
/// was saved by a run with other settings: the text names the file, and the newest older epoch
/// that is whole.
pub fn resume_point(
    folder: &Path,
    extension: Option<&str>,
    settings: Option<&[u8]>,
) -> io::Result<Option<usize>> {
    let run = settings.map(digest_of_run);
    let run = run.as_deref();
    let epochs = tidied(folder, extension)?;
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
fn tidied(folder: &Path, only: Option<&str>) -> io::Result<BTreeMap<usize, Vec<PathBuf>>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut epochs: BTreeMap<usize, Epoch> = BTreeMap::new();
    for entry in entries {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if is_unfinished(&name) {
            remove(&file)?;
        } else if let Some((part, epoch, extension)) = parse(&name)
            && only.is_none_or(|only| extension == only)
        {
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

/// `model-3.mpk.gz` is the model of epoch 3, in a file of the kind `mpk.gz`.
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

/// A file of which some is not written: ours, or what Burn 0.22 writes before it renames it, as
/// `model-3.bpk.4711-0.tmp`.
fn is_unfinished(name: &str) -> bool {
    let written = name
        .strip_suffix(".tmp")
        .and_then(|name| name.rsplit_once('.'));
    name.starts_with(UNFINISHED) || written.is_some_and(|(name, _)| parse(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(folder.path().join(file), file).unwrap();
        }
        folder
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect()
    }

    #[test]
    fn parts_of_one_kind_make_a_checkpoint() {
        let files = ["model-1.bpk", "optim-1.mpk", "scheduler-1.mpk"];
        let other = ["model-1.mpk", "model-2.mpk.gz", "unfinished-optim-2.mpk.gz"];
        let folder = folder(&[files, other].concat());
        assert_eq!(resume_point(folder.path(), None, None).unwrap(), Some(1));
        assert_eq!(names(folder.path()).len(), 4);
        // Of this extension there is one part, which is removed.
        let bpk = resume_point(folder.path(), Some("bpk"), None).unwrap();
        assert_eq!(bpk, None);
        assert_eq!(names(folder.path()).len(), 3);
    }

    #[test]
    fn what_a_killed_save_has_left_is_removed() {
        let kept = ["model-1.bpk", "optim-1.bpk", "scheduler-1.bpk", "notes.tmp"];
        let left = [
            "model-2.bpk",
            "model-2.bpk.sha256",
            "optim-2.bpk.4711-0.tmp",
            "unfinished-model-2.bpk.sha256",
        ];
        let folder = folder(&[kept, left].concat());
        let found = resume_point(folder.path(), Some("bpk"), None).unwrap();
        assert_eq!(found, Some(1));
        assert_eq!(names(folder.path()), BTreeSet::from(kept.map(String::from)));
    }
}

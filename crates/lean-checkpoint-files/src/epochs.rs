//! Where to resume.

use std::{
    collections::BTreeMap,
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

/// The extensions that Burn's recorders give them.
const EXTENSIONS: [&str; 7] = ["bin", "bin.gz", "bpk", "json", "json.gz", "mpk", "mpk.gz"];

/// The newest epoch of which model, optimizer and scheduler were all saved. `None` if there is none.
///
/// The parts are named as Burn's file checkpointer names them, `model-3.<extension>`: with this
/// extension, or with any, if it is none. `settings` is what tells this run from others.
///
/// Nothing is left that a later save could complete with files of another run. Removed is what a
/// save that was killed has left behind: unfinished files, and those of the epoch after the resume
/// point, which are computed again. Later epochs that are not complete may be all that was kept of
/// a run: their files are moved to a new folder beside this one, as `checkpoint-incomplete` beside
/// `checkpoint`, or `checkpoint-incomplete-2` if there is one. Files with other extensions than
/// this one, or than those of Burn's recorders, stay.
///
/// # Errors
///
/// If the folder cannot be read, or a file in it not removed or moved. Of the kind
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

/// The files of the epochs that are complete. The others are out of the way.
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
            parts.insert(part, file);
        }
    }
    let mut newest_first = epochs.iter().rev();
    let newest = newest_first.find(|(_, epoch)| epoch.is_complete());
    let newest = newest.map(|(number, _)| *number);
    let mut later = Vec::new();
    for (number, epoch) in epochs.iter().filter(|(number, _)| Some(**number) > newest) {
        let in_the_way = epoch.in_the_way(only.is_some());
        if *number > newest.unwrap_or(0) + 1 {
            later.extend(in_the_way);
            continue;
        }
        for file in in_the_way {
            remove(file)?;
            remove(&checksum::path_of(file))?;
        }
    }
    move_aside(folder, &later)?;
    checksum::remove_orphans(folder)?;
    let complete = epochs.into_iter().filter(|(_, epoch)| epoch.is_complete());
    Ok(complete
        .map(|(number, epoch)| (number, epoch.files().cloned().collect()))
        .collect())
}

#[derive(Default)]
struct Epoch {
    /// Files by extension and part: parts of different recorders make no checkpoint.
    parts: BTreeMap<String, BTreeMap<&'static str, PathBuf>>,
}

impl Epoch {
    fn is_complete(&self) -> bool {
        self.parts.values().any(|parts| parts.len() == PARTS.len())
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.parts.values().flat_map(BTreeMap::values)
    }

    /// The files that a later save could complete: not those with an extension of others, as a copy
    /// that somebody has made.
    fn in_the_way(&self, is_known: bool) -> impl Iterator<Item = &PathBuf> {
        let parts = self
            .parts
            .iter()
            .filter(move |(extension, _)| is_known || EXTENSIONS.contains(&extension.as_str()));
        parts.flat_map(|(_, parts)| parts.values())
    }
}

/// Moves files with their checksums to a new folder beside theirs.
fn move_aside(folder: &Path, files: &[&PathBuf]) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let aside = new_folder_beside(folder)?;
    for file in files {
        // The checksum first: without its file it is removed.
        move_to(&aside, &checksum::path_of(file))?;
        move_to(&aside, file)?;
    }
    Ok(())
}

/// Moves a file that may not be there.
fn move_to(folder: &Path, file: &Path) -> io::Result<()> {
    match fs::rename(file, folder.join(file.file_name().unwrap_or_default())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is in an older one is not replaced.
fn new_folder_beside(folder: &Path) -> io::Result<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut number = 1;
    loop {
        let aside = folder.with_file_name(match number {
            1 => format!("{name}-incomplete"),
            _ => format!("{name}-incomplete-{number}"),
        });
        match fs::create_dir(&aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            created => return created.map(|()| aside),
        }
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
        let number: usize = epoch.parse().ok()?;
        // `model-03.mpk` is of somebody else.
        (epoch == number.to_string()).then_some((*part, number, extension))
    })
}

/// A file of which some is not written: ours, or what Burn 0.22 writes before it renames it, as
/// `model-3.bpk.4711-0.tmp`.
fn is_unfinished(name: &str) -> bool {
    let of_burn = || {
        let (name, writer) = name.strip_suffix(".tmp")?.rsplit_once('.')?;
        let (process, count) = writer.split_once('-')?;
        let are_numbers = [process, count].map(|number| number.parse::<u64>().is_ok());
        (are_numbers == [true; 2]).then(|| parse(name))?
    };
    name.starts_with(UNFINISHED) || of_burn().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tempfile::TempDir;

    /// A folder of checkpoints with these files, in a folder of its own.
    fn folder(files: &[&str]) -> (TempDir, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("checkpoint");
        fs::create_dir(&folder).unwrap();
        write(&folder, files);
        (home, folder)
    }

    fn write(folder: &Path, files: &[&str]) {
        for file in files {
            fs::write(folder.join(file), file).unwrap();
        }
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| String::from(*name)).collect()
    }

    #[test]
    fn parts_of_one_kind_make_a_checkpoint() {
        let files = ["model-1.bpk", "optim-1.mpk", "scheduler-1.mpk"];
        let other = ["model-1.mpk", "model-2.mpk.gz", "unfinished-optim-2.mpk.gz"];
        let (_home, folder) = folder(&[files, other].concat());
        assert_eq!(resume_point(&folder, None, None).unwrap(), Some(1));
        assert_eq!(names(&folder).len(), 4);
        // Of this extension there is one part, which makes none.
        let bpk = resume_point(&folder, Some("bpk"), None).unwrap();
        assert_eq!(bpk, None);
        assert_eq!(names(&folder).len(), 3);
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
        let (home, folder) = folder(&[&kept[..], &left].concat());
        let found = resume_point(&folder, Some("bpk"), None).unwrap();
        assert_eq!(found, Some(1));
        assert_eq!(names(&folder), set(&kept));
        assert_eq!(names(home.path()), set(&["checkpoint"]));
    }

    #[test]
    fn weights_that_were_kept_alone_are_not_lost() {
        let weights = ["model-20.mpk", "model-20.mpk.sha256"];
        let (home, folder) = folder(&weights);
        assert_eq!(resume_point(&folder, None, None).unwrap(), None);
        let aside = home.path().join("checkpoint-incomplete");
        assert_eq!(names(&aside), set(&weights));
        // Others, and the first ones stay.
        write(&folder, &["model-20.mpk", "optim-20.mpk"]);
        assert_eq!(resume_point(&folder, None, None).unwrap(), None);
        assert_eq!(names(&aside), set(&weights));
        let second = home.path().join("checkpoint-incomplete-2");
        assert_eq!(names(&second), set(&["model-20.mpk", "optim-20.mpk"]));
        assert_eq!(resume_point(&folder, None, None).unwrap(), None);
        assert_eq!(names(home.path()).len(), 3);
    }

    #[test]
    fn other_files_are_not_touched() {
        let other = [
            "model-5.mpk.bak",
            "model-5.mpk.old.tmp",
            "model-05.mpk",
            "model-best.mpk",
            "optim-5.txt",
        ];
        let (home, folder) = folder(&other);
        assert_eq!(resume_point(&folder, None, None).unwrap(), None);
        assert_eq!(resume_point(&folder, Some("mpk"), None).unwrap(), None);
        assert_eq!(names(&folder), set(&other));
        assert_eq!(names(home.path()).len(), 1);
    }
}

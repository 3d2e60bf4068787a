//! The checkpoints of a run, and the one from which to resume.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    UNFINISHED,
    checksum::{self, Checksum, digest_of_run},
    disk::{remove, sync},
    error::at,
};

/// The extensions that Burn's recorders give them.
const EXTENSIONS: [&str; 7] = ["bin", "bin.gz", "bpk", "json", "json.gz", "mpk", "mpk.gz"];

/// With a single checkpoint there would be none while the old one is replaced.
const KEPT: usize = 2;

/// The checkpoints of a run, in one folder: of epoch 3, `model-3.bpk`, `optim-3.bpk` and so on, each
/// with its [checksum] beside it. An epoch is complete once all of its parts are there.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    parts: Vec<Part>,
    run: Option<String>,
}

/// `model.bpk`, or `model` with any extension.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    extension: Option<String>,
}

impl Checkpoints {
    /// The checkpoints in this folder, which may not be there. A part is named as `model.bpk`, or
    /// without its extension if that is not known: then an epoch has all parts with one extension.
    pub fn new(folder: impl Into<PathBuf>, parts: &[&str]) -> Self {
        let part = |part: &&str| match part.split_once('.') {
            Some((name, extension)) => Part {
                name: name.into(),
                extension: Some(extension.into()),
            },
            None => Part {
                name: (*part).into(),
                extension: None,
            },
        };
        Self {
            folder: folder.into(),
            parts: parts.iter().map(part).collect(),
            run: None,
        }
    }

    /// Those of one run, by what tells it from others: what another run has saved is refused.
    pub fn of_run(mut self, identity: impl AsRef<[u8]>) -> Self {
        self.run = Some(digest_of_run(identity.as_ref()));
        self
    }

    /// The file of a part, as `model.bpk`, in an epoch.
    pub fn file(&self, part: &str, epoch: usize) -> PathBuf {
        self.folder.join(match part.split_once('.') {
            Some((name, extension)) => format!("{name}-{epoch}.{extension}"),
            None => format!("{part}-{epoch}"),
        })
    }

    /// Saves an epoch, and keeps the newest complete one before it. `write` is called for each part,
    /// in order, with the file to write it to. Files get their names once all parts are written.
    ///
    /// Nothing is left of an epoch that cannot be saved, which would take the room of the next
    /// attempt; the checkpoints of before stay. An epoch that is saved again is removed once all
    /// parts are written, and never has parts of two saves.
    ///
    /// # Errors
    ///
    /// Those of `write`; or the disk does not take it.
    pub fn save<E: From<io::Error>>(
        &self,
        epoch: usize,
        write: impl FnMut(&str, &Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let saved = self.write(epoch, write).and_then(|parts| {
            let published = self.publish(epoch, parts);
            Ok(published.inspect_err(|_| {
                let _ = self.remove(epoch);
            })?)
        });
        saved.inspect_err(|_| {
            // Says nothing of its own: the error that counts is there.
            let _ = self.remove_unfinished();
        })?;
        let epochs = self.epochs()?;
        let before = epochs.range(..epoch).rev();
        let mut complete = before.filter(|(_, epoch)| self.is_complete(epoch));
        if let Some((oldest, _)) = complete.nth(KEPT - 2) {
            let mut old = epochs.range(..oldest);
            old.try_for_each(|(old, _)| self.remove(*old))?;
        }
        Ok(())
    }

    /// Writes the parts of an epoch under other names.
    fn write<E: From<io::Error>>(
        &self,
        epoch: usize,
        mut write: impl FnMut(&str, &Path) -> Result<(), E>,
    ) -> Result<Vec<Written>, E> {
        fs::create_dir_all(&self.folder).map_err(|error| at(&self.folder, &error))?;
        let parts = self.parts.iter().map(|Part { name, extension }| {
            let part = match extension {
                Some(extension) => format!("{name}.{extension}"),
                None => name.clone(),
            };
            let file = self.file(&part, epoch);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let unfinished = self.folder.join(format!("{UNFINISHED}{name}"));
            write(&part, &unfinished)?;
            let checksum =
                sync(&unfinished).and_then(|()| Checksum::new(&unfinished, self.run.clone()));
            let checksum = checksum.map_err(|error| at(&unfinished, &error))?;
            Ok(Written {
                unfinished,
                file,
                checksum,
            })
        });
        parts.collect()
    }

    /// Gives the parts of an epoch their names, in place of those of an earlier save.
    fn publish(&self, epoch: usize, parts: Vec<Written>) -> io::Result<()> {
        self.remove(epoch)?;
        parts.into_iter().try_for_each(|part| {
            let published = part.checksum.publish(&part.unfinished, &part.file);
            published.map_err(|error| at(&part.file, &error))
        })
    }

    /// Removes the files of an epoch, if there are any.
    ///
    /// # Errors
    ///
    /// Names the file that cannot be removed.
    pub fn remove(&self, epoch: usize) -> io::Result<()> {
        let mut epochs = self.epochs()?;
        let epoch = epochs.remove(&epoch).unwrap_or_default();
        self.removable(&epoch).try_for_each(remove_with_checksum)
    }

    /// Removes all checkpoints, and nothing else that is in the folder.
    ///
    /// # Errors
    ///
    /// Names the file that cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        self.remove_unfinished()?;
        // From the oldest on: what is left of an interruption has a newest checkpoint that is
        // complete.
        for epoch in self.epochs()?.values() {
            self.removable(epoch).try_for_each(remove_with_checksum)?;
        }
        Ok(())
    }

    /// Whether there is any file of a checkpoint.
    pub fn exist(&self) -> bool {
        self.epochs().is_ok_and(|epochs| !epochs.is_empty())
    }

    /// The newest epoch that is complete, with which to go on. `None` if there is none.
    ///
    /// Nothing is left that a later save could complete with files of another run. Removed is what a
    /// save that was killed has left behind: unfinished files, and those of the epoch after the
    /// resume point, which are computed again. Later epochs that are not complete may be all that
    /// was kept of a run: their files are moved to a new folder beside this one, as
    /// `checkpoint-incomplete` beside `checkpoint`, or `checkpoint-incomplete-2` if there is one.
    /// Files with other extensions than those of the parts, or of Burn's recorders, stay.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, or a file in it not removed or moved. Of the kind
    /// [`InvalidData`](io::ErrorKind::InvalidData) if a file of that epoch is not as it was saved,
    /// or was saved by a run with other settings: the text names the file, and the newest older
    /// epoch that is whole.
    pub fn resume_point(&self) -> io::Result<Option<usize>> {
        let epochs = self.tidied()?;
        let Some((newest, of_newest)) = epochs.last_key_value() else {
            return Ok(None);
        };
        let Err(error) = self.verify(of_newest) else {
            return Ok(Some(*newest));
        };
        if error.kind() != io::ErrorKind::InvalidData {
            return Err(error);
        }
        let mut older = epochs.range(..newest).rev();
        let whole = older.find(|(_, epoch)| self.verify(epoch).is_ok());
        let way_out = match whole {
            Some((whole, _)) => format!(
                "the checkpoint of epoch {whole} is whole: to go on from there, remove the files of later epochs \
                 from {}",
                self.folder.display()
            ),
            None => "there is no older checkpoint that is whole: start anew".into(),
        };
        Err(io::Error::new(error.kind(), format!("{error}; {way_out}")))
    }

    fn verify(&self, epoch: &Epoch) -> io::Result<()> {
        let mut files = epoch.values().flat_map(BTreeMap::values);
        files.try_for_each(|file| checksum::verify(file, self.run.as_deref()))
    }

    /// The epochs that are complete. The others are out of the way.
    fn tidied(&self) -> io::Result<BTreeMap<usize, Epoch>> {
        self.remove_unfinished()?;
        let mut epochs = self.epochs()?;
        let mut newest_first = epochs.iter().rev();
        let newest = newest_first.find(|(_, epoch)| self.is_complete(epoch));
        let newest = newest.map(|(number, _)| *number);
        let mut later = Vec::new();
        for (number, epoch) in epochs.iter().filter(|(number, _)| Some(**number) > newest) {
            let in_the_way = self.removable(epoch);
            if *number > newest.unwrap_or(0) + 1 {
                later.extend(in_the_way);
                continue;
            }
            in_the_way.into_iter().try_for_each(remove_with_checksum)?;
        }
        move_aside(&self.folder, &later)?;
        if self.folder.is_dir() {
            checksum::remove_orphans(&self.folder, |name| {
                self.parse(name).is_some_and(|(part, _, extension)| {
                    self.parts[part].extension.is_some() || EXTENSIONS.contains(&extension)
                })
            })?;
        }
        epochs.retain(|_, epoch| self.is_complete(epoch));
        Ok(epochs)
    }

    /// All epochs of which there is a file.
    fn epochs(&self) -> io::Result<BTreeMap<usize, Epoch>> {
        let mut epochs: BTreeMap<usize, Epoch> = BTreeMap::new();
        for file in self.entries()? {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if let Some((part, epoch, extension)) = self.parse(&name) {
                // Parts of different recorders make no checkpoint, if their extension is not known.
                let extension = match self.parts[part].extension {
                    Some(_) => "",
                    None => extension,
                };
                let epoch = epochs.entry(epoch).or_default();
                let parts = epoch.entry(extension.to_owned()).or_default();
                parts.insert(part, file);
            }
        }
        Ok(epochs)
    }

    fn remove_unfinished(&self) -> io::Result<()> {
        for file in self.entries()? {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if self.is_unfinished(&name) {
                remove(&file)?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(&self.folder) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(at(&self.folder, &error)),
        }
    }

    fn is_complete(&self, epoch: &Epoch) -> bool {
        let mut of_recorders = epoch.iter().filter(|(extension, _)| !is_copy(extension));
        of_recorders.any(|(_, parts)| parts.len() == self.parts.len())
    }

    /// The files that a later save could complete: not those with an extension of others, as a copy
    /// that somebody has made.
    fn removable<'a>(&self, epoch: &'a Epoch) -> impl Iterator<Item = &'a PathBuf> + use<'a> {
        let of_burn = |extension: &str| extension.is_empty() || EXTENSIONS.contains(&extension);
        let parts = epoch
            .iter()
            .filter(move |(extension, _)| of_burn(extension));
        parts.flat_map(|(_, parts)| parts.values())
    }

    /// `model-3.mpk.gz` is the model of epoch 3, in a file of the kind `mpk.gz`.
    fn parse<'a>(&self, name: &'a str) -> Option<(usize, usize, &'a str)> {
        if name.ends_with(checksum::EXTENSION) {
            return None;
        }
        self.parts.iter().enumerate().find_map(|(index, part)| {
            let number_and_kind = name.strip_prefix(&part.name)?.strip_prefix('-')?;
            let (epoch, extension) = number_and_kind.split_once('.')?;
            let number: usize = epoch.parse().ok()?;
            let is_of_part = part.extension.as_deref().is_none_or(|of| of == extension);
            // `model-03.mpk` is of somebody else.
            (is_of_part && epoch == number.to_string()).then_some((index, number, extension))
        })
    }

    /// A file of which some is not written: ours, or what Burn 0.22 writes before it renames it, as
    /// `model-3.bpk.4711-0.tmp`.
    fn is_unfinished(&self, name: &str) -> bool {
        let of_burn = || {
            let (name, writer) = name.strip_suffix(".tmp")?.rsplit_once('.')?;
            let (process, count) = writer.split_once('-')?;
            let are_numbers = [process, count].map(|number| number.parse::<u64>().is_ok());
            (are_numbers == [true; 2]).then(|| self.parse(name))?
        };
        name.starts_with(UNFINISHED) || of_burn().is_some()
    }
}

/// A part of an epoch that is on the disk, under another name than its own.
struct Written {
    unfinished: PathBuf,
    file: PathBuf,
    checksum: Checksum,
}

/// The files of an epoch by extension and part.
type Epoch = BTreeMap<String, BTreeMap<usize, PathBuf>>;

/// Whether somebody has kept a file under another name, as `model-3.mpk.bak`.
fn is_copy(extension: &str) -> bool {
    let is_of = |known: &&str| {
        let rest = extension.strip_prefix(*known);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    !EXTENSIONS.contains(&extension) && EXTENSIONS.iter().any(is_of)
}

fn remove_with_checksum(file: &PathBuf) -> io::Result<()> {
    for file in [file, &checksum::path_of(file)] {
        remove(file)?;
    }
    Ok(())
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
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(file, &error)),
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
            Err(error) => return Err(at(&aside, &error)),
            Ok(()) => return Ok(aside),
        }
    }
}

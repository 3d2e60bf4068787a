//! The checkpoints of a run, and the one from which to resume.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::{
    UNFINISHED,
    checksum::{self, Checksum, digest_of_run},
    disk::{publish, remove},
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
        fs::create_dir_all(&self.folder)?;
        let parts = self.parts.iter().map(|Part { name, extension }| {
            let part = match extension {
                Some(extension) => format!("{name}.{extension}"),
                None => name.clone(),
            };
            let file = self.file(&part, epoch);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let unfinished = self.folder.join(format!("{UNFINISHED}{name}"));
            write(&part, &unfinished)?;
            // A disk may say only now that it is full.
            File::open(&unfinished)?.sync_all()?;
            let checksum = Checksum::new(&unfinished, self.run.clone())?;
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
            // Never beside a file that it is not of: killed in between, there is none.
            remove(&checksum::path_of(&part.file))?;
            publish(&part.unfinished, &part.file)?;
            part.checksum.write(&part.file)
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
                remove(&file).map_err(|error| at(&file, &error))?;
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
        epoch.values().any(|parts| parts.len() == self.parts.len())
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

fn remove_with_checksum(file: &PathBuf) -> io::Result<()> {
    for file in [file, &checksum::path_of(file)] {
        remove(file).map_err(|error| at(file, &error))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::PARTS as LEARNER_PARTS;
    use std::collections::BTreeSet;
    use tempfile::TempDir;

    fn learner(folder: &Path) -> Checkpoints {
        Checkpoints::new(folder, &LEARNER_PARTS)
    }

    fn bpk(folder: &Path) -> Checkpoints {
        Checkpoints::new(folder, &["model.bpk", "optim.bpk", "scheduler.bpk"])
    }

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
        assert_eq!(learner(&folder).resume_point().unwrap(), Some(1));
        assert_eq!(names(&folder).len(), 4);
        // Of this extension there is one part, which makes none.
        let bpk = bpk(&folder).resume_point().unwrap();
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
        let found = bpk(&folder).resume_point().unwrap();
        assert_eq!(found, Some(1));
        assert_eq!(names(&folder), set(&kept));
        assert_eq!(names(home.path()), set(&["checkpoint"]));
    }

    #[test]
    fn weights_that_were_kept_alone_are_not_lost() {
        let weights = ["model-20.mpk", "model-20.mpk.sha256"];
        let (home, folder) = folder(&weights);
        assert_eq!(learner(&folder).resume_point().unwrap(), None);
        let aside = home.path().join("checkpoint-incomplete");
        assert_eq!(names(&aside), set(&weights));
        // Others, and the first ones stay.
        write(&folder, &["model-20.mpk", "optim-20.mpk"]);
        assert_eq!(learner(&folder).resume_point().unwrap(), None);
        assert_eq!(names(&aside), set(&weights));
        let second = home.path().join("checkpoint-incomplete-2");
        assert_eq!(names(&second), set(&["model-20.mpk", "optim-20.mpk"]));
        assert_eq!(learner(&folder).resume_point().unwrap(), None);
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
            "data.csv.sha256",
            "optim-6.txt.sha256",
        ];
        let (home, folder) = folder(&other);
        assert_eq!(learner(&folder).resume_point().unwrap(), None);
        assert_eq!(bpk(&folder).resume_point().unwrap(), None);
        assert_eq!(names(&folder), set(&other));
        assert_eq!(names(home.path()).len(), 1);
    }

    const PARTS: [&str; 2] = ["model.bin", "state.json"];

    /// Epochs that a run has saved, in a folder that was not there.
    fn saved(epochs: &[usize], run: &str) -> (TempDir, Checkpoints) {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("checkpoint");
        let checkpoints = Checkpoints::new(folder, &PARTS).of_run(run);
        for epoch in epochs {
            let write = |part: &str, file: &Path| fs::write(file, format!("{part} of {epoch}"));
            checkpoints.save(*epoch, write).unwrap();
        }
        (home, checkpoints)
    }

    fn refusal(checkpoints: &Checkpoints) -> String {
        let error = checkpoints.resume_point().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        error.to_string()
    }

    #[test]
    fn the_two_newest_are_kept() {
        for epochs in [[1, 2, 3], [5, 10, 15], [1, 4, 5]] {
            let (_home, checkpoints) = saved(&epochs, "a run");
            let [_, before, last] = epochs;
            assert_eq!(checkpoints.resume_point().unwrap(), Some(last));
            let kept = [before, last].into_iter().flat_map(|epoch| {
                let files = [format!("model-{epoch}.bin"), format!("state-{epoch}.json")];
                files.map(|file| [file.clone(), format!("{file}.sha256")])
            });
            assert_eq!(names(&checkpoints.folder), kept.flatten().collect());
            let model = fs::read_to_string(checkpoints.file("model.bin", last));
            assert_eq!(model.unwrap(), format!("model.bin of {last}"));
            assert!(checkpoints.exist());
            checkpoints.clear().unwrap();
            assert!(!checkpoints.exist());
            assert!(names(&checkpoints.folder).is_empty());
        }
    }

    #[test]
    fn a_full_disk_leaves_the_last_checkpoint_and_its_own_room() {
        let (_home, checkpoints) = saved(&[1, 2], "a run");
        let before = names(&checkpoints.folder);
        for full in PARTS {
            let error = checkpoints.save(3, |part, file| {
                fs::write(file, "as far as it goes")?;
                match part == full {
                    true => Err(io::Error::from(io::ErrorKind::StorageFull)),
                    false => Ok(()),
                }
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(names(&checkpoints.folder), before, "{full}");
            assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
        }
    }

    #[test]
    fn an_epoch_that_is_saved_again_is_of_one_save() {
        let (_home, checkpoints) = saved(&[1, 2], "a run");
        let contents = || {
            let names = names(&checkpoints.folder).into_iter();
            let content = |name| fs::read_to_string(checkpoints.folder.join(name)).unwrap();
            names.map(content).collect::<Vec<_>>()
        };
        let before = contents();
        for full in PARTS {
            let error = checkpoints.save(2, |part, file| match part == full {
                true => Err(io::Error::from(io::ErrorKind::StorageFull)),
                false => fs::write(file, "of the second save"),
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(contents(), before, "{full}");
        }
        // As good as killed.
        let unwound = std::panic::catch_unwind(|| {
            checkpoints.save(2, |part, file| {
                assert_ne!(part, PARTS[1]);
                fs::write(file, "of the third save")
            })
        });
        assert!(unwound.is_err());
        assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
        assert_eq!(contents(), before);
        let write = |_: &str, file: &Path| fs::write(file, "of the last save");
        checkpoints.save(2, write).unwrap();
        assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
        for part in PARTS {
            let saved = fs::read_to_string(checkpoints.file(part, 2));
            assert_eq!(saved.unwrap(), "of the last save");
        }
    }

    #[test]
    fn a_file_that_is_not_as_it_was_saved_is_refused() {
        let (_home, checkpoints) = saved(&[1, 2], "a run");
        for part in PARTS {
            let file = checkpoints.file(part, 2);
            let whole = fs::read(&file).unwrap();
            let mut flipped = whole.clone();
            flipped[3] ^= 4;
            for bytes in [flipped, b"no record".to_vec(), Vec::new()] {
                fs::write(&file, bytes).unwrap();
                let text = refusal(&checkpoints);
                let begins = format!("{} is not as it was saved; ", file.display());
                assert!(text.starts_with(&begins), "{text}");
                assert!(
                    text.contains("the checkpoint of epoch 1 is whole"),
                    "{text}"
                );
            }
            fs::write(file, whole).unwrap();
        }
        // As the message says.
        for part in PARTS {
            fs::remove_file(checkpoints.file(part, 2)).unwrap();
        }
        assert_eq!(checkpoints.resume_point().unwrap(), Some(1));
    }

    #[test]
    fn a_checkpoint_of_another_run_is_refused() {
        let (_home, checkpoints) = saved(&[1], "seed: 42");
        let other = checkpoints.clone().of_run("seed: 7");
        let text = refusal(&other);
        let says =
            "was saved by a run with other settings; there is no older checkpoint that is whole";
        assert!(text.contains(says), "{text}");
        assert_eq!(checkpoints.resume_point().unwrap(), Some(1));
    }

    #[test]
    fn what_cannot_be_removed_is_named() {
        let (_home, checkpoints) = saved(&[1, 2], "a run");
        let file = checkpoints.file("model.bin", 1);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let text = checkpoints.remove(1).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{}: ", file.display())), "{text}");
    }
}

//! Files that are on the disk under their own name at once, or not at all.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

use serde::Serialize;

use crate::{UNFINISHED, error::at};

/// Gives a file its final name once all of it is on the disk.
///
/// # Errors
///
/// If the file is not there, or the disk does not take it.
pub(crate) fn publish(unfinished: &Path, file: &Path) -> io::Result<()> {
    sync(unfinished)?;
    fs::rename(unfinished, file)?;
    match cfg!(unix) {
        true => File::open(folder_of(file))?.sync_all(),
        // Windows opens no folders, and renames in order.
        false => Ok(()),
    }
}

/// Waits until all of a file is on the disk, which may say only now that it is full.
pub(crate) fn sync(file: &Path) -> io::Result<()> {
    // Windows refuses it to those who may only read.
    File::options().write(true).open(file)?.sync_all()
}

/// The folder that a file is in: the current one for a name alone.
pub fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Removes a file that may not be there.
///
/// # Errors
///
/// If it is there and stays. The text names it.
pub fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(file, &error)),
        _ => Ok(()),
    }
}

/// Writes a value to a file of the folder as JSON, or leaves the folder as it was.
///
/// # Errors
///
/// If the disk does not take it, or the value has no JSON.
pub fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let write = || {
        serde_json::to_writer_pretty(File::create(&unfinished)?, value)?;
        publish(&unfinished, &folder.join(name))
    };
    write().inspect_err(|_| {
        // Where the disk is full, what is left takes the room of the next attempt.
        let _ = fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for value in ["long enough to leave something", "short"] {
            write_json(folder.path(), "a.json", &value).unwrap();
            let read = fs::read_to_string(folder.path().join("a.json")).unwrap();
            assert_eq!(read, format!("{value:?}"));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// The folder of a name alone is the current one, and has no name of its own.
    #[test]
    fn a_file_of_the_current_folder_is_published() {
        let (folder, before) = (tempfile::tempdir().unwrap(), env::current_dir().unwrap());
        env::set_current_dir(folder.path()).unwrap();
        let written = fs::write("unfinished", "whole");
        let published = written.and_then(|()| publish("unfinished".as_ref(), "a".as_ref()));
        env::set_current_dir(before).unwrap();
        published.unwrap();
        assert!(folder.path().join("a").exists());
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let no_json = std::collections::BTreeMap::from([([0u8; 2], 0)]);
        write_json(folder.path(), "a.json", &no_json).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::create_dir_all(folder.path().join("a.json/in the way")).unwrap();
        write_json(folder.path(), "a.json", &"whole").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

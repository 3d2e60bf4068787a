//! Files that are on the disk under their own name at once, or not at all.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

use serde::Serialize;

use crate::UNFINISHED;

/// Gives a file its final name once all of it is on the disk.
///
/// # Errors
///
/// If the file is not there, or the disk does not take it.
pub fn publish(unfinished: &Path, file: &Path) -> io::Result<()> {
    File::open(unfinished)?.sync_all()?;
    fs::rename(unfinished, file)?;
    match file.parent() {
        // Windows opens no folders, and renames in order.
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Removes a file that may not be there.
///
/// # Errors
///
/// If it is there and stays.
pub fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
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

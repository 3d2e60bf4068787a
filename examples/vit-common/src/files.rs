//! Files that are complete or not there.

use anyhow::Result;
use serde::Serialize;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Settings and results are written to this file, which is then renamed. A rename is atomic, so a
/// file under its final name is complete.
const UNFINISHED: &str = "unfinished.json";

/// A file that could not be written, in one line that names it and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct CannotWrite(pub String);

impl fmt::Display for CannotWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for CannotWrite {}

/// Writes to a folder; the error says so, whatever has failed.
///
/// # Errors
///
/// [`CannotWrite`], with the reason.
pub fn writing<T>(folder: &Path, write: impl FnOnce() -> Result<T>) -> Result<T> {
    write().map_err(|error| {
        CannotWrite(format!("cannot write to {}: {error:#}", folder.display())).into()
    })
}

/// Whether an error is about a file that could not be written, be it for want of room or because
/// the disk is read-only.
pub fn is_about_writing(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        cause.is::<CannotWrite>() || kind.is_some_and(|kind| NO_ROOM.contains(&kind))
    })
}

/// Why a system writes no more.
const NO_ROOM: [ErrorKind; 4] = [
    ErrorKind::FileTooLarge,
    ErrorKind::QuotaExceeded,
    ErrorKind::ReadOnlyFilesystem,
    ErrorKind::StorageFull,
];

/// Writes `value` to the file `name` of the folder, or leaves the folder as it was.
pub fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let unfinished = folder.join(UNFINISHED);
    let written =
        write(&unfinished, value).and_then(|()| fs::rename(&unfinished, folder.join(name)));
    if written.is_err() {
        // Where the disk is full, what is left takes the room of the next attempt.
        let _ = fs::remove_file(&unfinished);
    }
    Ok(written?)
}

fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(path)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.sync_all()
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

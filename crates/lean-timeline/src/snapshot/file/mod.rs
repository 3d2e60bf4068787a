//! The file of a snapshot: gzip of JSON, which `zcat FILE | jq` reads.
//!
//! The JSON is an object with these keys, in this order:
//!
//! | key | value |
//! |---|---|
//! | `format` | `"memory-timeline"` |
//! | `version` | 1; a program refuses what is above the version it knows |
//! | `title`, `backend`, `parameters`, `operations`, `warnings` | as in [`Snapshot`](crate::Snapshot) |
//! | `categories` | names of categories; `holders.category` is an index into it |
//! | `times` | microseconds: the first tick's, then the difference of each from the one before |
//! | `holders` | columns `bytes`, `category`, `parameter`, `operation`, `from`, `ticks` |
//! | `phases` | columns `kind`, `parameter`, `iteration`, `from`, `ticks` |
//! | `samples` | columns `tick`, `in_use`, `above`, `operation` |
//!
//! A column is an array with one value for each holder, phase or sample. `from`, `tick` and
//! `in_use` are differences, each from the value before, the first from 0. `ticks` is `until` less
//! `from`. `above` is the peak less `in_use`. A phase's `kind` is `"forward"`, `"backward"`,
//! `"optimizer"` or `"step"`, and only a step has a `parameter`. No parameter or operation is
//! `null`.

mod check;
mod columns;
mod gzip;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
};

use tempfile::NamedTempFile;

use super::{data::Snapshot, error::SnapshotError};
use check::check;
use gzip::{compress, decompress};

/// Takes the place of the file's name in errors about a stream.
const STREAM: &str = "<stream>";

impl Snapshot {
    /// Saves the snapshot to a file. The file is complete from the moment it appears: the snapshot
    /// is written beside `path`, and renamed to it.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the snapshot contradicts itself.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SnapshotError> {
        let path = path.as_ref();
        self.check(path)?;
        self.replace(path).map_err(|reason| SnapshotError::Write {
            path: path.into(),
            reason,
        })
    }

    fn check(&self, path: &Path) -> Result<(), SnapshotError> {
        check(self).map_err(|problem| SnapshotError::Inconsistent {
            path: path.into(),
            problem,
        })
    }

    fn replace(&self, path: &Path) -> io::Result<()> {
        let beside = beside(path)?;
        let mut file = BufWriter::new(beside.as_file());
        compress(self, &mut file)?;
        file.into_inner()?.sync_all()?;
        beside.persist(path)?;
        Ok(())
    }

    /// Checks that the folder exists to which [`save`](Self::save) is going to write.
    ///
    /// # Errors
    ///
    /// [`Write`](SnapshotError::Write): it does not, or is not a folder.
    pub fn check_folder(path: &Path) -> Result<(), SnapshotError> {
        let found = std::fs::metadata(folder(path)).and_then(|found| match found.is_dir() {
            true if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        found.map_err(|reason| SnapshotError::Write {
            path: path.into(),
            reason,
        })
    }

    /// Loads a snapshot from a file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is something else, is cut short, is of a later version, or
    /// contradicts itself.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let failed = |reason| SnapshotError::Open {
            path: path.into(),
            reason,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        decompress(BufReader::new(file), path)
    }

    /// Writes to a stream what [`save`](Self::save) saves.
    ///
    /// # Errors
    ///
    /// As for [`save`](Self::save), with `<stream>` for the file.
    pub fn write(&self, to: impl Write) -> Result<(), SnapshotError> {
        self.check(STREAM.as_ref())?;
        compress(self, to).map_err(|reason| SnapshotError::Write {
            path: STREAM.into(),
            reason,
        })
    }

    /// Reads from a stream what [`write`](Self::write) wrote.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), with `<stream>` for the file.
    pub fn read(from: impl Read) -> Result<Self, SnapshotError> {
        decompress(from, STREAM.as_ref())
    }
}

/// A temporary file in the folder of `path`, which is deleted unless it is renamed.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    // Temporary files are private by default; a snapshot is as readable as the user's other files.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(path))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

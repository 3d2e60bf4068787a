//! Errors of snapshots and their files.

use std::{io, path::PathBuf};

use thiserror::Error;

use super::format::VERSION;

/// Why a snapshot could not be saved or loaded. The text of each is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file does not exist, or this user may not read it.
    #[error("cannot open {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// The folder does not exist, the disk is full, or this user may not write here.
    #[error(
        "cannot write {}: {reason}; choose a folder that exists and has room", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// Reading failed after the file was opened.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// The file is no gzip, or gzip of something else.
    #[error(
        "{} is not a memory snapshot: give a file that the recorder saved", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is only the beginning of a snapshot.
    #[error(
        "{} ends early: was the program that wrote it stopped, or the copy cut short? Record or \
         copy it again", path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The bytes of the file have changed since it was written.
    #[error("{} is damaged ({problem}): record or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault in the bytes.
        problem: String,
    },
    /// A later version of this program wrote the file.
    #[error(
        "{} was written by version {version} of the format, this program reads up to {}: update it",
        path.display(),
        VERSION
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        version: u64,
    },
    /// The parts of the snapshot contradict each other.
    #[error(
        "{} contradicts itself ({problem}): whatever wrote it has a bug", path.display()
    )]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        problem: String,
    },
}

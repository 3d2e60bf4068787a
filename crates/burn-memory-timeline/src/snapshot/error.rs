//! What can be wrong with a snapshot, and the way out.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a snapshot could not be saved or loaded, in one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// There is no such file, or this user may not read it.
    #[error("cannot open {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The folder is not there, the disk is full, this user may not write here.
    #[error(
        "cannot write {}: {reason}; choose a folder that exists and has room", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The system stopped handing out bytes, or a device failed.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// Something else: no gzip, or gzip of something else.
    #[error(
        "{} is not a memory snapshot: give a file that the recorder saved", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The beginning of a snapshot.
    #[error(
        "{} ends early: was the program that wrote it stopped, or the copy cut short? Record or \
         copy it again", path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// A snapshot whose bytes have changed since it was written.
    #[error("{} is damaged ({problem}): record or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A snapshot of a later version of this program.
    #[error(
        "{} was written by version {version} of the format, this program reads up to {}: update it",
        path.display(),
        super::VERSION
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        version: u64,
    },
    /// A snapshot whose parts contradict each other.
    #[error(
        "{} contradicts itself ({problem}): whatever wrote it has a bug", path.display()
    )]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What contradicts what.
        problem: String,
    },
}

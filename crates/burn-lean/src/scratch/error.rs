//! What can go wrong with a scratch file.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Refused;

/// Why tensors cannot go into a file.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScratchError {
    /// There cannot be a file in the folder.
    #[error("no scratch file can be made in {}: {error}; name a folder on a disk that can be written to", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        error: Arc<std::io::Error>,
    },
    /// The folder is in memory.
    #[error(
        "{} is in memory (tmpfs), so a scratch file in it would take the memory that it is to save: \
         name a folder on a disk",
        folder.display()
    )]
    InMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// The disk has no room.
    #[error(
        "the scratch file in {} needs {needed} bytes more, and its disk has {free} free: {error}; \
         free some, or name a folder on another disk",
        folder.display()
    )]
    Space {
        /// The folder.
        folder: PathBuf,
        /// How many bytes are needed.
        needed: u64,
        /// How many are free.
        free: u64,
        /// What the system says.
        error: Arc<std::io::Error>,
    },
    /// A parameter is not on Flex, or is quantized by Burn.
    #[error(
        "{what} cannot be in a scratch file: only tensors of numbers on `Device::flex()` can; a base in \
         four bits is made by `operations::Nf4`"
    )]
    NotOnFlex {
        /// What was found.
        what: String,
    },
    /// No thread can be started to read ahead.
    #[error("the thread that reads a scratch file ahead cannot be started: {0}")]
    Thread(Arc<std::io::Error>),
}

impl<M> From<Refused<M, (), ScratchError>> for ScratchError {
    fn from(refused: Refused<M, (), ScratchError>) -> Self {
        refused.into_parts().1
    }
}

//! Why there is no text to learn.

use std::io;
use std::path::{Path, PathBuf};

/// Why there is no text to learn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not what its name says, or is of another model.
    #[error("{}: {reason}", file.display())]
    Contents {
        /// Its path.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A line of a file cannot be learned.
    #[error("{}, line {line}: {source}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        source: Box<Self>,
    },
    /// A text cannot be learned.
    #[error("{reason}")]
    Text {
        /// What is wrong.
        reason: String,
    },
}

impl TextError {
    pub(crate) fn file(file: &Path, source: io::Error) -> Self {
        let file = file.to_path_buf();
        Self::File { file, source }
    }

    pub(crate) fn contents(file: &Path, reason: impl ToString) -> Self {
        Self::Contents {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn text(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Text { reason }
    }
}

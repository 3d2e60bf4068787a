//! Faults of a snapshot, before the name of its file is known.

use std::{io, path::Path};

use crate::snapshot::error::SnapshotError;

pub(super) enum Problem {
    Io(io::Error),
    Foreign,
    Truncated,
    Damaged(String),
    Newer(u64),
    Inconsistent(String),
}

impl Problem {
    /// The error that names the file.
    pub(super) fn of(self, path: &Path) -> SnapshotError {
        let path = path.into();
        match self {
            Self::Io(reason) => SnapshotError::Read { path, reason },
            Self::Foreign => SnapshotError::Foreign { path },
            Self::Truncated => SnapshotError::Truncated { path },
            Self::Damaged(problem) => SnapshotError::Damaged { path, problem },
            Self::Newer(version) => SnapshotError::Newer { path, version },
            Self::Inconsistent(problem) => SnapshotError::Inconsistent { path, problem },
        }
    }
}

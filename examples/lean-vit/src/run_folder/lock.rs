//! A file that one program at a time has locked.
//!
//! The system unlocks it when its program ends, however it ends.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

/// Held until it is dropped.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code)] File);

impl Lock {
    /// Creates and locks the file.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot lock {}", path.display());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => bail!(
                "another program is training in {}: wait for it, or choose another --artifact-dir",
                path.parent().unwrap_or(path).display()
            ),
            Err(TryLockError::Error(error)) => Err(error).with_context(cannot),
        }
    }
}

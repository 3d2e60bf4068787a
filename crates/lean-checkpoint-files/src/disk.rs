//! Files that are on the disk under their own name at once, or not at all.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

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

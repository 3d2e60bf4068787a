//! A file that one program at a time has locked.
//!
//! The system unlocks it when its program ends, however it ends. The file says who that is.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::process;

use crate::error::{CannotWrite, FolderError};
use crate::exit::note;

/// The name of the file in the folder of a run.
pub(crate) const LOCK: &str = "lock";

/// The file begins so, once a program has locked it.
const HOLDER: &str = "process ";

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

impl Lock {
    /// Creates and locks the file of a folder, which exists.
    ///
    /// # Errors
    ///
    /// - [`FolderError::InUse`]: another program has locked it;
    /// - [`FolderError::OfAnotherProgram`]: the file is not such a lock, and stays as it is;
    /// - [`FolderError::CannotWrite`].
    pub fn acquire(folder: &Path) -> Result<Self, FolderError> {
        let mut file = locked(folder)?;
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(this_process().as_bytes()));
        written.map_err(|error| cannot_lock(folder, &error))?;
        Ok(Self(file))
    }

    /// Fails if another program has locked the file of a folder. Creates and writes none.
    ///
    /// # Errors
    ///
    /// As those of [`acquire`](Self::acquire).
    pub fn ensure_free(folder: &Path) -> Result<(), FolderError> {
        if folder.join(LOCK).exists() {
            locked(folder)?;
        }
        Ok(())
    }
}

/// Locks the file of a folder, and does not write to it.
fn locked(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK);
    let cannot = |error: io::Error| cannot_lock(folder, &error);
    let mut file = open(&path).map_err(cannot)?;
    let mut locked = file.try_lock();
    if locked.is_ok() && !is_at(&path, &file).map_err(cannot)? {
        // Deleted in between. Another program may have locked a new file of this name.
        file = open(&path).map_err(cannot)?;
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only to say who it is: on some systems a locked file cannot be read.
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.is_empty() {
                true => String::new(),
                false => format!(" ({holder})"),
            };
            let folder = folder.to_path_buf();
            return Err(FolderError::InUse { folder, holder });
        }
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {
            let folder = folder.display();
            note(&format!(
                "the file system of {folder} has no locks: see that no other program trains there"
            ));
        }
        Err(TryLockError::Error(error)) => return Err(cannot(error).into()),
    }
    let mut begins = Vec::new();
    let of_holder = HOLDER.len() as u64;
    let mut beginning = Read::take(&file, of_holder);
    beginning.read_to_end(&mut begins).map_err(cannot)?;
    match begins.is_empty() || begins == HOLDER.as_bytes() {
        true => Ok(file),
        false => Err(FolderError::OfAnotherProgram(path)),
    }
}

fn cannot_lock(folder: &Path, error: &io::Error) -> CannotWrite {
    let path = folder.join(LOCK);
    CannotWrite(format!("cannot lock {}: {error}", path.display()))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    options.open(path)
}

/// Whether this is still the file of this path, which may have been deleted.
#[cfg(unix)]
fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        found => Ok(identity(found?) == identity(file.metadata()?)),
    }
}

/// A file that is open is not deleted.
#[cfg(not(unix))]
fn is_at(_path: &Path, _file: &File) -> io::Result<bool> {
    Ok(true)
}

/// Whether the file system has no locks. NFS without its lock daemon says `ENOLCK`, which has no
/// kind.
fn has_no_locks(error: &io::Error) -> bool {
    let no_daemon = if cfg!(target_os = "linux") { 37 } else { 77 };
    let is_missing = cfg!(unix) && error.raw_os_error() == Some(no_daemon);
    is_missing || error.kind() == ErrorKind::Unsupported
}

/// As `process 71 on node1`.
fn this_process() -> String {
    let process = format!("{HOLDER}{}", process::id());
    match fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(machine) => format!("{process} on {}", machine.trim()),
        Err(_) => process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_who_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        Lock::ensure_free(folder.path()).unwrap();
        assert!(!folder.path().join(LOCK).exists());
        fs::write(
            folder.path().join(LOCK),
            "process 1234567890 on a machine of before",
        )
        .unwrap();
        let held = Lock::acquire(folder.path()).unwrap();
        let text = Lock::acquire(folder.path()).unwrap_err().to_string();
        let holder = format!("another program (process {}", process::id());
        assert!(text.starts_with(&holder), "{text}");
        assert!(!text.contains("of before"), "{text}");
        assert!(Lock::ensure_free(folder.path()).is_err());
        drop(held);
        drop(Lock::acquire(folder.path()).unwrap());
        let text = fs::read_to_string(folder.path().join(LOCK)).unwrap();
        assert_eq!(text, this_process());
    }

    #[test]
    fn a_file_of_this_name_that_is_no_lock_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        for text in ["chef 1.2\n", "proc"] {
            fs::write(&path, text).unwrap();
            for refused in [
                Lock::ensure_free(folder.path()).unwrap_err(),
                Lock::acquire(folder.path()).map(drop).unwrap_err(),
            ] {
                let way_out = "lock is of another program: choose another folder";
                assert!(refused.to_string().ends_with(way_out), "{refused}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // Nor is the lock of a program that has ended written to before it is taken.
        fs::write(&path, "process 1234567890").unwrap();
        Lock::ensure_free(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "process 1234567890");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_deleted_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        let file = open(&path).unwrap();
        assert!(is_at(&path, &file).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&path, &file).unwrap());
        let new = open(&path).unwrap();
        assert!(!is_at(&path, &file).unwrap() && is_at(&path, &new).unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_without_locks_is_known() {
        let error = io::Error::from_raw_os_error;
        // `ENOLCK` and `EOPNOTSUPP`; `EACCES` is another matter.
        assert!(has_no_locks(&error(37)) && has_no_locks(&error(95)));
        assert!(!has_no_locks(&error(13)));
    }
}

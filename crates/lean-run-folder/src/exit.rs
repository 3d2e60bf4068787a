//! The end of a program: an error in one line, and exit codes that a script can tell apart.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::error::{CannotWrite, FolderError, chain, one_line};

/// The exit code of any other error.
pub const FAILURE: u8 = 1;

/// The exit code if a file could not be written: that of BSD's `sysexits.h`.
pub const CANNOT_WRITE: u8 = 74;

/// Why a system writes no more.
const NO_ROOM: [ErrorKind; 4] = [
    ErrorKind::FileTooLarge,
    ErrorKind::QuotaExceeded,
    ErrorKind::ReadOnlyFilesystem,
    ErrorKind::StorageFull,
];

/// Writes an error with its causes to stderr, in one line; returns the exit code for it.
pub fn fail(error: &(dyn Error + 'static)) -> ExitCode {
    note(&format!("error: {}", one_line(error)));
    ExitCode::from(code(error))
}

/// Writes a line to stderr. Whoever reads it may be gone, as a terminal that is closed: what is
/// trained does not depend on that.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn code(error: &(dyn Error + 'static)) -> u8 {
    let is_about_writing = chain(error).any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let of_folder = cause.downcast_ref::<FolderError>();
        cause.is::<CannotWrite>()
            || matches!(of_folder, Some(FolderError::CannotWrite(_)))
            || kind.is_some_and(|kind| NO_ROOM.contains(&kind))
    });
    match is_about_writing {
        true => CANNOT_WRITE,
        false => FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("the checkpoint\n  of epoch 3")]
    struct Saving(#[source] io::Error);

    #[test]
    fn an_error_and_its_causes_are_one_line() {
        let error = Saving(ErrorKind::StorageFull.into());
        let line = "the checkpoint of epoch 3: no storage space";
        assert_eq!(one_line(&error), line);
        let folder = FolderError::from(CannotWrite::to("a", "no room"));
        assert_eq!(one_line(&folder), "cannot write to a: no room");
    }

    #[test]
    fn what_cannot_be_written_has_its_own_exit_code() {
        assert_eq!(code(&Saving(ErrorKind::StorageFull.into())), CANNOT_WRITE);
        assert_eq!(code(&Saving(ErrorKind::NotFound.into())), FAILURE);
        assert_eq!(code(&CannotWrite("".into())), CANNOT_WRITE);
        let lock = FolderError::from(CannotWrite("".into()));
        assert_eq!(code(&lock), CANNOT_WRITE);
        assert_eq!(code(&FolderError::NoFolder("a".into())), FAILURE);
    }
}

//! What can fail, in one line each that names the way out.

use std::path::PathBuf;
use std::{error, fmt, io};

use thiserror::Error;

/// A file that could not be written: the disk is full, or read-only, or the user may not.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{0}")]
pub struct CannotWrite(
    /// Which file, and why.
    pub String,
);

impl CannotWrite {
    /// `cannot write to <path>: <reason>`
    pub fn to(path: impl Into<PathBuf>, reason: impl fmt::Display) -> Self {
        let path = path.into();
        Self(format!("cannot write to {}: {reason}", path.display()))
    }
}

/// Why a folder cannot be that of a run.
#[derive(Debug, Error)]
pub enum FolderError {
    /// Another program has locked it.
    #[error(
        "another program{holder} is training in {}: wait for it, or choose another folder", folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// As ` (process 71 on node1)`; empty if that is not known.
        holder: String,
    },
    /// The path is that of a file.
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    /// The settings, or the file of the lock, are not those of this program.
    #[error("{} is of another program: choose another folder", .0.display())]
    OfAnotherProgram(PathBuf),
    /// A new run would overwrite one that has ended.
    #[error("{} holds a finished run: overwrite it, or choose another folder", .0.display())]
    Finished(PathBuf),
    /// A new run would overwrite one that was interrupted.
    #[error("{} holds a run that was interrupted: resume it, overwrite it, or choose another folder", .0.display())]
    Interrupted(PathBuf),
    /// There is no run to resume.
    #[error("nothing to resume: there is no {}", .0.display())]
    NothingToResume(PathBuf),
    /// The settings of the run to resume are damaged.
    #[error("{} cannot be read: start anew in another folder ({reason})", file.display())]
    Unreadable {
        /// The file of the settings.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Not even the lock can be written.
    #[error(transparent)]
    CannotWrite(#[from] CannotWrite),
}

/// Why a run cannot go on with these settings.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// One that must not change.
    #[error("the run to resume has --{name} {saved}, not {now}")]
    Changed {
        /// The setting, as an option is written.
        name: String,
        /// Its value in the run to resume.
        saved: String,
        /// The value that was given.
        now: String,
    },
    /// They are no JSON, or not flat.
    #[error("the settings cannot be saved: {0}")]
    NoJson(#[from] serde_json::Error),
}

/// Why a run cannot begin.
#[derive(Debug, Error)]
pub enum RunError {
    /// Its folder cannot be that of the run.
    #[error("{0}")]
    Folder(#[from] FolderError),
    /// The run cannot go on with these settings.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// A file cannot be written.
    #[error("{0}")]
    CannotWrite(#[from] CannotWrite),
    /// Its checkpoints cannot be read, or are not as they were saved.
    #[error("{0}")]
    Checkpoints(#[from] io::Error),
}

/// An error and its causes, in one line.
pub(crate) fn one_line(error: &(dyn error::Error + 'static)) -> String {
    let causes = chain(error).map(ToString::to_string);
    let mut texts: Vec<String> = causes.collect();
    // An error that writes out its source would say it twice.
    texts.dedup_by(|cause, error| error.ends_with(cause.as_str()));
    let line = texts.join(": ");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An error and its causes.
pub(crate) fn chain<'a>(
    error: &'a (dyn error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The same error with the file that it is about.
pub(crate) fn at(file: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

//! The file of a snapshot: plain JSON.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use thiserror::Error;

use super::{Holder, Parameter, Phase, PhaseKind, Sample, Snapshot, perfetto, pytorch, read};

/// A file with this ending is a trace for Perfetto.
const PERFETTO: &str = ".perfetto.json";

/// Why a snapshot could not be saved or loaded. The text of each is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The folder does not exist, the disk is full, or this user may not write here.
    #[error("cannot write {}: {}; choose a folder that exists and has room", .0.display(), .1)]
    Write(PathBuf, io::Error),
    /// The file does not exist, or cannot be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// The file is something else.
    #[error(
        "{} is not a memory snapshot in JSON ({}): give a file that the recorder wrote, or \
         `torch.cuda.memory._snapshot()` by `json.dump`", .0.display(), .1
    )]
    Foreign(PathBuf, String),
    /// The file is only the beginning of a snapshot.
    #[error(
        "{} ends early: was the program that wrote it stopped, or the copy cut short?", .0.display()
    )]
    Truncated(PathBuf),
    /// The parts of the snapshot contradict each other.
    #[error("{} contradicts itself: its {} cannot be right", .0.display(), .1)]
    Inconsistent(PathBuf, &'static str),
}

impl Snapshot {
    /// Saves the snapshot: for Perfetto if the name ends with `.perfetto.json`, else for
    /// `burn-memory` and PyTorch's memory_viz. The file is complete from the moment it appears: it
    /// is written beside `path`, and renamed.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the snapshot contradicts itself.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SnapshotError> {
        let path = path.as_ref();
        let name = path.to_string_lossy();
        let checked = self.check();
        checked.map_err(|part| SnapshotError::Inconsistent(path.into(), part))?;
        let replace = || {
            let beside = beside(path)?;
            let mut file = BufWriter::new(beside.as_file());
            match name.ends_with(PERFETTO) {
                true => perfetto::write(self, &mut file)?,
                false => pytorch::write(self, &mut file)?,
            }
            file.into_inner()?.sync_all()?;
            beside.persist(path)?;
            Ok(())
        };
        replace().map_err(|reason| SnapshotError::Write(path.into(), reason))
    }

    /// Loads a snapshot that [`save`](Self::save) or PyTorch wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is something else, is cut short, or contradicts itself.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let open = || match path.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => File::open(path),
        };
        let file = open().map_err(|reason| SnapshotError::Read(path.into(), reason))?;
        let read = read::read(BufReader::with_capacity(1 << 16, file));
        let snapshot = read.map_err(|error| match error.classify() {
            serde_json::error::Category::Io => SnapshotError::Read(path.into(), error.into()),
            serde_json::error::Category::Eof => SnapshotError::Truncated(path.into()),
            _ => SnapshotError::Foreign(path.into(), error.to_string()),
        })?;
        let checked = snapshot.check();
        checked.map_err(|part| SnapshotError::Inconsistent(path.into(), part))?;
        Ok(snapshot)
    }

    /// Checks that every index and tick exists, that ticks and times never fall, and that sums of
    /// bytes are exact. Saving and loading do so.
    ///
    /// # Errors
    ///
    /// The part that cannot be right.
    pub fn check(&self) -> Result<(), &'static str> {
        let (ticks, large) = (self.times.len(), 1 << 53);
        let is_span = |from, until| from <= until && from < ticks && until <= ticks;
        let is_parameter = |of: Option<usize>| of.is_none_or(|of| of < self.parameters.len());
        let is_shape = |of: &Parameter| {
            let elements = of
                .shape
                .iter()
                .try_fold(1_usize, |sum, axis| sum.checked_mul(*axis));
            elements.is_some_and(|elements| elements < large)
        };
        let is_held = |held: &Holder| {
            let is_known = is_parameter(held.parameter) && held.operation < self.operations.len();
            is_known && is_span(held.from, held.until)
        };
        let is_phase = |phase: &Phase| match phase.kind {
            PhaseKind::Step(of) if !is_parameter(Some(of)) => false,
            _ => is_span(phase.from, phase.until) && phase.iteration < ticks,
        };
        let is_sample = |of: &Sample| of.tick < ticks && of.in_use.max(of.peak) < large as u64;
        let mut bytes = self.holders.iter().map(|held| held.bytes);
        let bytes = bytes.try_fold(0_u64, u64::checked_add);
        let parts = [
            ("times", self.times.is_sorted()),
            ("parameters", self.parameters.iter().all(is_shape)),
            ("holders", self.holders.is_sorted_by_key(|held| held.from)),
            ("holders", self.holders.iter().all(is_held)),
            ("bytes", bytes.is_some_and(|bytes| bytes < 1 << 62)),
            ("phases", self.phases.is_sorted_by_key(|phase| phase.from)),
            ("phases", self.phases.iter().all(is_phase)),
            ("samples", self.samples.is_sorted_by_key(|of| of.tick)),
            ("samples", self.samples.iter().all(is_sample)),
        ];
        match parts.iter().find(|(_, is_sound)| !is_sound) {
            Some((part, _)) => Err(part),
            None => Ok(()),
        }
    }

    /// Checks that the folder exists to which [`save`](Self::save) is going to write.
    ///
    /// # Errors
    ///
    /// [`Write`](SnapshotError::Write): it does not, or is not a folder.
    pub fn check_folder(path: &Path) -> Result<(), SnapshotError> {
        let found = std::fs::metadata(folder(path)).and_then(|found| match found.is_dir() {
            true if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        found.map_err(|reason| SnapshotError::Write(path.into(), reason))
    }
}

/// A temporary file in the folder of `path`, which is deleted unless it is renamed.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    // Temporary files are private by default; a snapshot is as readable as the user's other files.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(path))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

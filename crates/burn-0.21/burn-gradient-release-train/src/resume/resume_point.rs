//! Where to resume.

use std::{io, path::Path};

use lean_run_folder::{Checkpoints, LEARNER_PARTS};

/// The newest epoch of which model, optimizer and scheduler were all saved: what to give to
/// `.checkpoint(..)`. `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`. Nothing is left that a later save
/// could complete with files of another run: unfinished files and those of the epoch after the
/// resume point, which a save that was killed has left, are removed, and the files of later epochs
/// that are not complete are moved to `checkpoint-incomplete`, beside the folder of checkpoints.
///
/// Files count as whole: write them with an [`AtomicFileRecorder`](super::AtomicFileRecorder),
/// whose checksums are compared.
///
/// # Errors
///
/// If the folder of checkpoints cannot be read, or a file in it not removed or moved. Of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData) if a file of that epoch is not as it was saved: the
/// text names the file, and the newest older epoch that is.
pub fn resume_point(directory: impl AsRef<Path>) -> io::Result<Option<usize>> {
    checked(directory.as_ref(), None)
}

/// The same for a run whose files were saved with
/// [`AtomicFileRecorder::of_run`](super::AtomicFileRecorder::of_run) with these settings.
///
/// # Errors
///
/// Those of [`resume_point`], and if a file was saved by a run with other settings.
pub fn resume_point_of_run(
    directory: impl AsRef<Path>,
    settings: impl AsRef<[u8]>,
) -> io::Result<Option<usize>> {
    checked(directory.as_ref(), Some(settings.as_ref()))
}

fn checked(directory: &Path, settings: Option<&[u8]>) -> io::Result<Option<usize>> {
    // Burn's recorders choose the extension.
    let checkpoints = Checkpoints::new(directory.join("checkpoint"), &LEARNER_PARTS);
    match settings {
        Some(settings) => checkpoints.of_run(settings).resume_point(),
        None => checkpoints.resume_point(),
    }
}

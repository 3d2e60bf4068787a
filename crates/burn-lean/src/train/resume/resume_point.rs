//! The epoch from which to resume.

use std::io;
use std::path::Path;

use lean_run_folder::Checkpoints;

/// What Burn's file checkpointers write for an epoch.
const PARTS: [&str; 3] = ["model.bpk", "optim.bpk", "scheduler.bpk"];

/// The newest epoch of which model, optimizer and scheduler were all saved, for `.checkpoint(..)`.
/// `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`, with
/// [`checked_checkpointers`](super::checked_checkpointers), whose checksums are compared: files of
/// `with_default_checkpointers` have none, and count as they were saved. Nothing is
/// left that a later save could complete with files of another run: Burn's unfinished files and
/// those of the epoch after the resume point, which a save that was killed has left, are removed,
/// and the files of later epochs that are not complete are moved to `checkpoint-incomplete`, beside
/// the folder of checkpoints.
///
/// # Errors
///
/// If the folder of checkpoints cannot be read, or a file in it not removed or moved. Of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData) if a file of that epoch is not as it was saved: the
/// text names the file, and the newest older epoch that is.
///
/// # Example
///
/// ```
/// use burn_lean::train::resume::resume_point;
///
/// // For `.checkpoint(epoch)`, and `ResumedDataLoader::new(loader, epoch + 1)`.
/// assert_eq!(resume_point("a/run/that/never/was")?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn resume_point(directory: impl AsRef<Path>) -> io::Result<Option<usize>> {
    checked(directory.as_ref(), None)
}

/// The same for a run whose files were saved by
/// [`checked_checkpointers_of_run`](super::checked_checkpointers_of_run) with these settings.
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
    let checkpoints = Checkpoints::new(directory.join("checkpoint"), &PARTS);
    match settings {
        Some(settings) => checkpoints.of_run(settings).resume_point(),
        None => checkpoints.resume_point(),
    }
}

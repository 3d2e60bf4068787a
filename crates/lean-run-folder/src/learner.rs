//! The checkpoints of Burn's `Learner`.

use std::{io, path::Path};

use crate::Checkpoints;

/// The parts that its file checkpointer writes for an epoch.
pub(crate) const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch of which model, optimizer and scheduler were all saved, for `.checkpoint(..)`.
/// `None` if there is none.
///
/// `directory` is the one given to `SupervisedTraining::new`. No training may be running in it:
/// what an interrupted one has left is removed or moved aside, as [`Checkpoints::resume_point`]
/// says, so that no later save completes it with files of another run.
///
/// Files without a checksum count as they were saved. Checksums are written with
/// `checked_checkpointers` on Burn 0.22, and by an `AtomicFileRecorder` on 0.21.
///
/// # Errors
///
/// Those of [`Checkpoints::resume_point`].
///
/// # Example
///
/// ```
/// // Also `burn_lean::train::resume` and `burn_gradient_release_train::resume`.
/// use lean_run_folder::resume_point;
///
/// // For `.checkpoint(epoch)`, and `ResumedDataLoader::new(loader, epoch + 1)`.
/// assert_eq!(resume_point("a/run/that/never/was")?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn resume_point(directory: impl AsRef<Path>) -> io::Result<Option<usize>> {
    checkpoints(directory.as_ref()).resume_point()
}

/// The same for a run whose files were saved with these settings, by
/// `checked_checkpointers_of_run` on Burn 0.22 or `AtomicFileRecorder::of_run` on 0.21.
///
/// # Errors
///
/// Those of [`resume_point`], and if a file was saved by a run with other settings.
pub fn resume_point_of_run(
    directory: impl AsRef<Path>,
    settings: impl AsRef<[u8]>,
) -> io::Result<Option<usize>> {
    let checkpoints = checkpoints(directory.as_ref()).of_run(settings);
    checkpoints.resume_point()
}

fn checkpoints(directory: &Path) -> Checkpoints {
    Checkpoints::new(directory.join("checkpoint"), &PARTS)
}

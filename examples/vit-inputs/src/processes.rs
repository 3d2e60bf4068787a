//! The processes that train together.

use crate::options::Settings;
use anyhow::Result;
use lean_replicas::Replicas;
use lean_run_folder::listed;

/// Joins the processes that `mpirun` has started.
///
/// # Errors
///
/// This build has no MPI, or it fails.
pub fn join() -> Result<Replicas> {
    #[cfg(feature = "mpi")]
    return Ok(Replicas::new(lean_replicas::Mpi::initialize)?);
    #[cfg(not(feature = "mpi"))]
    anyhow::bail!(
        "--data-parallel needs MPI, which is not compiled in: build with `--features mpi`"
    )
}

/// The number of this process among those of its machine, by which it chooses its device; `None` if
/// it was not started as one of several.
pub fn local_rank() -> Option<usize> {
    #[cfg(feature = "mpi")]
    return lean_replicas::Mpi::local_rank();
    #[cfg(not(feature = "mpi"))]
    None
}

/// Waits for the other processes, if there are any, and compares the settings with theirs.
///
/// # Errors
///
/// They differ, or do something else.
pub fn agree(replicas: Option<&Replicas>, settings: &Settings) -> Result<()> {
    let Some(replicas) = replicas else {
        return Ok(());
    };
    replicas.meet("the folder of the run")?;
    // Machines may have the images elsewhere.
    let settings = listed(settings)?.into_iter();
    Ok(replicas.same_settings(settings.filter(|(name, _)| name != "data"))?)
}

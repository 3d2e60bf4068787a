//! The processes of a data parallel run.

use anyhow::{Result, ensure};
use lean_replicas::Replicas;
use std::num::NonZeroU64;
#[cfg(feature = "mpi")]
use std::time::Duration;

/// The number of this process among those of its machine, by which it chooses its device; `None` if
/// it was not started as one of several.
pub fn local_rank() -> Option<usize> {
    #[cfg(feature = "mpi")]
    return lean_replicas::Mpi::local_rank();
    #[cfg(not(feature = "mpi"))]
    None
}

/// Joins the processes that `mpirun` has started. Each waits so many seconds for the others;
/// without, 30 minutes.
#[allow(unused_variables)] // Each is for one of the two builds.
pub fn join(program: &str, timeout: Option<NonZeroU64>) -> Result<Replicas> {
    #[cfg(feature = "mpi")]
    {
        let join = lean_replicas::Mpi::initialize;
        Ok(match timeout {
            Some(seconds) => Replicas::new_within(Duration::from_secs(seconds.get()), join)?,
            None => Replicas::new(join)?,
        })
    }
    #[cfg(not(feature = "mpi"))]
    anyhow::bail!(
        "--data-parallel needs MPI, which is not compiled in: build with `cargo run --release -p \
         {program} --features mpi`"
    )
}

/// Whether every process gets an image of every batch.
pub fn check_shares(replicas: &Replicas, images: usize, batch_size: usize) -> Result<()> {
    let processes = replicas.size();
    let last = match images % batch_size {
        0 => batch_size.min(images),
        last => last,
    };
    ensure!(
        last >= processes,
        "{images} images leave {last} for the last batch of an epoch, and every one of {processes} \
         processes needs one: choose another --batch-size"
    );
    Ok(())
}

//! Processes that `mpirun` has started.

use std::{env, thread, time::Duration};

use mpi::{
    Threading,
    environment::Universe,
    request::{Request, Scope, scope},
    topology::{Color, SimpleCommunicator},
    traits::{Communicator as _, CommunicatorCollectives as _, Root as _},
};

use crate::{
    communicator::{CommunicationError, Communicator},
    machines::Machines,
};

/// All processes that were started together by `mpirun`, or by what stands for it.
///
/// On several machines with as many processes each, they exchange within each machine first, and
/// then between machines.
pub struct Mpi {
    processes: Box<dyn Communicator>,
    /// Its end is the end of MPI in this process.
    universe: Universe,
}

/// How often a request is asked whether it is done before the thread sleeps in between.
const EAGER: usize = 500;

/// How long it sleeps: what computes wants the processor.
const NAP: Duration = Duration::from_micros(50);

/// The exit code of processes that are ended by another.
const ABORTED: i32 = 1;

/// The names that MPI launchers give the number of a process among those of its machine.
const LOCAL_RANK: [&str; 4] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
];

impl Mpi {
    /// Joins the other processes. For [`Replicas::new`](crate::Replicas::new), which calls it on
    /// the thread that is to make all calls of MPI. Once in the life of a process.
    ///
    /// # Errors
    ///
    /// If the process has joined before, or the MPI library was built without threads.
    pub fn initialize() -> Result<Self, CommunicationError> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or("MPI was initialized before in this process, which can be done only once")?;
        if threading < Threading::Serialized {
            let text = format!("the MPI library gives {threading:?}, and Serialized is needed");
            return Err(text.into());
        }
        let world = universe.world();
        let machine = world.split_shared(world.rank());
        let (place, processes) = (machine.rank(), machine.size());
        // A process that stands elsewhere in the order of the ranks has no machine of this size.
        let in_order = world.rank() % processes == place;
        let mut of_all = vec![0; world.size() as usize];
        let mine = if in_order { processes } else { 0 };
        world.all_gather_into(&mine, &mut of_all[..]);
        let is_one_of_many = 1 < processes && processes < world.size();
        let are_alike = in_order && of_all.iter().all(|of_one| *of_one == processes);
        let processes: Box<dyn Communicator> = match is_one_of_many && are_alike {
            true => Box::new(in_machines(world, processes)),
            false => Box::new(Processes(world)),
        };
        Ok(Self {
            processes,
            universe,
        })
    }

    /// Takes so many processes, one after the other in the order of the ranks, for those of a
    /// machine: for the sockets of one, or where [`initialize`](Self::initialize) cannot tell
    /// machines apart. Called by all processes.
    ///
    /// # Errors
    ///
    /// If the processes cannot be divided so.
    pub fn in_machines_of(self, processes: usize) -> Result<Self, CommunicationError> {
        let size = self.size();
        if processes == 0 || !size.is_multiple_of(processes) {
            let text = format!("{size} processes are not machines of {processes} each");
            return Err(text.into());
        }
        let world = self.universe.world();
        Ok(Self {
            processes: Box::new(in_machines(world, processes as i32)),
            ..self
        })
    }

    /// The number of this process among those of its machine, by which it chooses its device.
    /// `None` if no launcher has given it one.
    pub fn local_rank() -> Option<usize> {
        let named = LOCAL_RANK.iter().find_map(|name| env::var(name).ok());
        named?.parse().ok()
    }
}

fn in_machines(world: SimpleCommunicator, processes: i32) -> Machines<Processes> {
    let rank = world.rank();
    let of_color = |color: i32| {
        let group = world.split_by_color_with_key(Color::with_value(color), rank);
        Processes(group.expect("every process has a color"))
    };
    let (within, between) = (of_color(rank / processes), of_color(rank % processes));
    Machines {
        all: Processes(world),
        within,
        between,
    }
}

/// A group of the processes.
struct Processes(SimpleCommunicator);

/// Fails if so many bytes of so many processes are more than MPI counts at once.
fn ensure_countable(bytes: usize, processes: usize) -> Result<(), CommunicationError> {
    let all = bytes.checked_mul(processes);
    if all.is_some_and(|all| i32::try_from(all).is_ok()) {
        return Ok(());
    }
    let most = i32::MAX;
    let text = format!(
        "{bytes} bytes of each of {processes} processes are more than the {most} that MPI counts at once: \
         send them in several parts"
    );
    Err(text.into())
}

impl Communicator for Processes {
    fn rank(&self) -> usize {
        self.0.rank() as usize
    }

    fn size(&self) -> usize {
        self.0.size() as usize
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        ensure_countable(bytes.len(), self.size())?;
        let mut all = vec![0; bytes.len() * self.size()];
        scope(|scope| {
            let world = &self.0;
            wait(world.immediate_all_gather_into(scope, bytes, &mut all[..]));
        });
        Ok(all)
    }

    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        ensure_countable(bytes.len(), self.size())?;
        let process = self.0.process_at_rank(root as i32);
        if root != self.rank() {
            scope(|scope| wait(process.immediate_gather_into(scope, bytes)));
            return Ok(Vec::new());
        }
        let mut all = vec![0; bytes.len() * self.size()];
        scope(|scope| wait(process.immediate_gather_into_root(scope, bytes, &mut all[..])));
        Ok(all)
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        ensure_countable(bytes.len(), 1)?;
        let mut parts = vec![0; bytes.len()];
        scope(|scope| {
            let world = &self.0;
            wait(world.immediate_all_to_all_into(scope, bytes, &mut parts[..]));
        });
        Ok(parts)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        ensure_countable(bytes.len(), 1)?;
        let process = self.0.process_at_rank(root as i32);
        scope(|scope| wait(process.immediate_broadcast_into(scope, bytes)));
        Ok(())
    }

    fn abort(&self) {
        self.0.abort(ABORTED);
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.processes.rank()
    }

    fn size(&self) -> usize {
        self.processes.size()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        self.processes.all_gather(bytes)
    }

    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        self.processes.gather(root, bytes)
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        self.processes.all_to_all(bytes)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        self.processes.broadcast(root, bytes)
    }

    fn abort(&self) {
        self.processes.abort();
    }
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mpi")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Waits for a request. MPI's own wait would keep a processor busy that computes the next gradient.
fn wait<'a, D: ?Sized, S: Scope<'a>>(mut request: Request<'a, D, S>) {
    for asked in 0.. {
        match request.test() {
            Ok(_) => return,
            Err(pending) => request = pending,
        }
        if asked < EAGER {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpi_cannot_count_is_refused() {
        assert!(ensure_countable((64 << 20) / 32, 32).is_ok());
        let error = ensure_countable(64 << 20, 32).unwrap_err().to_string();
        let begin = "67108864 bytes of each of 32 processes are more than the 2147483647";
        assert!(error.starts_with(begin), "{error}");
        assert!(ensure_countable(usize::MAX, 2).is_err());
    }
}

//! The thread on which a process communicates with the others.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    communicator::{CommunicationError, Communicator},
    error::ReplicaError,
};

/// Where a process is that has dropped its `Replicas`.
const END: &str = "the end of the training";

/// How long a process that leaves the others in the middle of something has to say why. The others
/// wait as long: the first process that ends makes the launcher kill all of them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// This process's end: it sends the thread what to do, and leaves the others when it is dropped.
pub(crate) struct Thread {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) jobs: Option<Sender<Job>>,
    pub(crate) taking_leave: Option<TakingLeave>,
    /// The timeout of the clone that was dropped last.
    pub(crate) patience: Mutex<Duration>,
    /// The first error, after which there is no orderly end.
    pub(crate) failed: Mutex<Option<ReplicaError>>,
}

/// The thread while it leaves the other processes.
pub(crate) struct TakingLeave {
    handle: JoinHandle<()>,
    /// Says that the others do something else. It is closed when the thread has left them.
    refused: Mutex<Receiver<()>>,
}

pub(crate) enum Job {
    Run(Box<dyn FnOnce(&Channel<'_>) + Send>),
    Abort,
}

/// The thread's way to the other processes.
pub(crate) struct Channel<'a> {
    communicator: &'a dyn Communicator,
    failed: Mutex<Option<ReplicaError>>,
}

impl Thread {
    /// Starts the thread, on which `connect` joins the other processes.
    pub(crate) fn start<C: Communicator>(
        timeout: Duration,
        connect: impl FnOnce() -> Result<C, CommunicationError> + Send + 'static,
    ) -> Result<Self, ReplicaError> {
        let (jobs, queue) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let (refuse, refused) = mpsc::channel();
        let handle = thread::Builder::new()
            .name("replicas".into())
            .spawn(move || match connect() {
                Ok(communicator) => {
                    let place = (communicator.rank(), communicator.size());
                    let _ = ready.send(Ok(place));
                    serve(communicator, &queue, &refuse);
                }
                Err(error) => {
                    let _ = ready.send(Err(failure(&error)));
                }
            })
            .map_err(|error| failure(&error.into()))?;
        let place = is_ready.recv_timeout(timeout).map_err(|error| match error {
            // The thread is left behind: nothing ends a call of MPI.
            RecvTimeoutError::Timeout => ReplicaError::NotJoined { waited: timeout },
            RecvTimeoutError::Disconnected => {
                failure(&"the thread that joins the other processes has panicked".into())
            }
        });
        let (rank, size) = place??;
        Ok(Self {
            rank,
            size,
            jobs: Some(jobs),
            taking_leave: Some(TakingLeave {
                handle,
                refused: Mutex::new(refused),
            }),
            patience: Mutex::new(timeout),
            failed: Mutex::new(None),
        })
    }
}

fn serve(communicator: impl Communicator, queue: &Receiver<Job>, refuse: &Sender<()>) {
    let channel = Channel {
        communicator: &communicator,
        failed: Mutex::new(None),
    };
    for job in queue {
        match job {
            Job::Run(work) => work(&channel),
            Job::Abort => return communicator.abort(),
        }
    }
    let has_failed = lock(&channel.failed).is_some();
    match channel.agree_and_do(END, |_| Ok(())) {
        Ok(()) => {}
        // Whoever asked was told, and this process will end. To take leave of others that are gone
        // could take for ever.
        Err(_) if has_failed => std::mem::forget(communicator),
        Err(error) => {
            // Whoever reads may be gone.
            let _ = writeln!(io::stderr(), "{error}");
            // The process may be about to say why it leaves, and end: then so do the others.
            let _ = refuse.send(());
            thread::sleep(LAST_WORDS);
            communicator.abort();
        }
    }
}

impl Channel<'_> {
    pub(crate) fn agree_and_do<T>(
        &self,
        what: &str,
        work: impl FnOnce(&dyn Communicator) -> Result<T, CommunicationError>,
    ) -> Result<T, ReplicaError> {
        if let Some(error) = lock(&self.failed).clone() {
            return Err(error);
        }
        let done = self.agree(what);
        let done = done.and_then(|()| work(self.communicator).map_err(|error| failure(&error)));
        if let Err(error) = &done {
            *lock(&self.failed) = Some(error.clone());
        }
        done
    }

    /// Compares what each process is about to do.
    fn agree(&self, what: &str) -> Result<(), ReplicaError> {
        let communicator = self.communicator;
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let own = [hasher.finish(), what.len() as u64];
        let own: Vec<u8> = own.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let all = communicator
            .all_gather(&own)
            .map_err(|error| failure(&error))?;
        if all.chunks_exact(own.len()).all(|other| other == own) {
            return Ok(());
        }
        let lengths = all.chunks_exact(own.len()).map(|other| {
            let length = other[size_of::<u64>()..].try_into();
            u64::from_ne_bytes(length.expect("two numbers")) as usize
        });
        let lengths: Vec<_> = lengths.collect();
        let longest = lengths.iter().copied().max().unwrap_or_default();
        let mut text = what.as_bytes().to_vec();
        text.resize(longest, 0);
        let texts = communicator
            .all_gather(&text)
            .map_err(|error| failure(&error))?;
        let mut ranks: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (rank, (text, length)) in texts.chunks_exact(longest).zip(lengths).enumerate() {
            let text = String::from_utf8_lossy(&text[..length]).into_owned();
            ranks.entry(text).or_default().push(rank.to_string());
        }
        if what != END && ranks.contains_key(END) {
            thread::sleep(LAST_WORDS);
        }
        let differences = ranks.into_iter();
        let mut differences: Vec<_> = differences
            .map(|(text, ranks)| format!("rank {}: {text}", ranks.join(", ")))
            .collect();
        differences.sort();
        Err(ReplicaError::Differs {
            rank: communicator.rank(),
            size: communicator.size(),
            differences: differences.join("; "),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let jobs = self.jobs.take();
        if thread::panicking() {
            // Must not wait for a process that waits for this one.
            if let Some(jobs) = jobs {
                let _ = jobs.send(Job::Abort);
            }
            return;
        }
        drop(jobs);
        let has_failed = lock(&self.failed).is_some();
        let patience = *lock(&self.patience);
        if let Some(TakingLeave { handle, refused }) = self.taking_leave.take()
            && !has_failed
            // Others that do not come are left behind, and so is the thread that waits for them.
            && lock(&refused).recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
        {
            let _ = handle.join();
        }
    }
}

pub(crate) fn failure(error: &CommunicationError) -> ReplicaError {
    ReplicaError::Communication {
        reason: error.to_string(),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The processes that train replicas of a model, and the thread on which they communicate.

use std::{
    collections::BTreeMap,
    fmt::Display,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    communicator::{CommunicationError, Communicator},
    error::ReplicaError,
    threads::Threads,
};

/// How long a process waits for the others, unless it is told.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Where a process is that has dropped its [`Replicas`].
const END: &str = "the end of the training";

/// How long a process that leaves the others in the middle of something has to say why. The others
/// wait as long: the first process that ends makes the launcher kill all of them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The processes that train replicas of a model together: this one's place among them.
///
/// All of them do the same things in the same order. Each thing has a name, which they compare
/// before they do it, so that a process that has gone another way is an error on all of them, which
/// says who does what. After an error, the others are ended by letting this process end: they wait
/// two seconds for it to say why.
///
/// The communication is done by a thread, so that the next gradient can be computed meanwhile.
/// Clones are the same processes. When the last one is dropped, this process takes its leave of the
/// others, and waits until they do the same, at most for its [timeout](Replicas::with_timeout); if
/// that is while a panic unwinds, it ends all of them.
#[derive(Clone)]
pub struct Replicas {
    thread: Arc<Thread>,
    timeout: Duration,
}

struct Thread {
    rank: usize,
    size: usize,
    jobs: Option<Sender<Job>>,
    taking_leave: Option<TakingLeave>,
    /// The timeout of the clone that was dropped last.
    patience: Mutex<Duration>,
    /// The first error, after which there is no orderly end.
    failed: Mutex<Option<ReplicaError>>,
}

/// The thread while it leaves the other processes.
struct TakingLeave {
    handle: JoinHandle<()>,
    /// Says that the others do something else. It is closed when the thread has left them.
    refused: Mutex<Receiver<()>>,
}

enum Job {
    Run(Box<dyn FnOnce(&Channel<'_>) + Send>),
    Abort,
}

/// The thread's way to the other processes.
struct Channel<'a> {
    communicator: &'a dyn Communicator,
    failed: Mutex<Option<ReplicaError>>,
}

/// The future result of an operation of all replicas.
pub struct Pending<T> {
    what: String,
    answer: Receiver<Result<T, ReplicaError>>,
    replicas: Replicas,
}

impl Replicas {
    /// Starts the thread, on which `connect` joins the other processes.
    ///
    /// # Errors
    ///
    /// If that fails, or takes longer than 30 minutes.
    pub fn new<C: Communicator>(
        connect: impl FnOnce() -> Result<C, CommunicationError> + Send + 'static,
    ) -> Result<Self, ReplicaError> {
        Self::new_within(TIMEOUT, connect)
    }

    /// As [`new`](Self::new), with another [timeout](Self::with_timeout), which holds for joining the
    /// others, too.
    ///
    /// # Errors
    ///
    /// If that fails, or takes longer.
    pub fn new_within<C: Communicator>(
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
            thread: Arc::new(Thread {
                rank,
                size,
                jobs: Some(jobs),
                taking_leave: Some(TakingLeave {
                    handle,
                    refused: Mutex::new(refused),
                }),
                patience: Mutex::new(timeout),
                failed: Mutex::new(None),
            }),
            timeout,
        })
    }

    /// One of the threads of this process.
    ///
    /// # Errors
    ///
    /// If the thread of the communicator cannot be started.
    pub fn of_threads(thread: Threads) -> Result<Self, ReplicaError> {
        let mut replicas = Self::new(move || Ok(thread))?;
        if let Some(thread) = Arc::get_mut(&mut replicas.thread) {
            // Taking leave waits for the others, which may be dropped after this one, by the same
            // thread.
            thread.taking_leave = None;
        }
        Ok(replicas)
    }

    /// Sets the timeout (default 30 min): how long to wait for the others, also until they leave. It
    /// has to cover the time in which the first process validates and saves while they wait.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.thread.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.thread.size
    }

    /// Whether this is the process that writes and shows what is the same in all.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Waits until all of the processes are there.
    ///
    /// # Errors
    ///
    /// If a process does something else, as its `what` says.
    pub fn meet(&self, what: &str) -> Result<(), ReplicaError> {
        self.begin(what.into(), |_| Ok(())).wait()
    }

    /// Whether any of the processes says so.
    ///
    /// # Errors
    ///
    /// If a process does something else, as its `what` says.
    pub fn any(&self, what: &str, flag: bool) -> Result<bool, ReplicaError> {
        let pending = self.begin(what.into(), move |communicator| {
            communicator.all_gather(&[u8::from(flag)])
        });
        Ok(pending.wait()?.contains(&1))
    }

    /// The words of the first process that has any. `None` if none of them has.
    ///
    /// # Errors
    ///
    /// If a process does something else, as its `what` says.
    pub fn anybody_says(
        &self,
        what: &str,
        text: Option<String>,
    ) -> Result<Option<String>, ReplicaError> {
        let pending = self.begin(what.into(), move |communicator| {
            // One more than its length; 0 is no text.
            let own = text.as_ref().map_or(0, |text| text.len() as u64 + 1);
            let all = communicator.all_gather(&own.to_ne_bytes())?;
            let mut lengths = all
                .chunks_exact(size_of::<u64>())
                .map(|length| u64::from_ne_bytes(length.try_into().expect("a number")));
            let said = lengths.by_ref().enumerate().find(|(_, length)| *length > 0);
            let Some((rank, length)) = said else {
                return Ok(None);
            };
            let mut bytes = text.unwrap_or_default().into_bytes();
            bytes.resize(length as usize - 1, 0);
            communicator.broadcast(rank, &mut bytes)?;
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        });
        pending.wait()
    }

    /// Compares what the processes are set to, one setting after the other: the error names the
    /// first that differs. They name the same settings, in the same order.
    ///
    /// # Errors
    ///
    /// If a process has another value, or is elsewhere.
    pub fn same_settings<N: Display, V: Display>(
        &self,
        settings: impl IntoIterator<Item = (N, V)>,
    ) -> Result<(), ReplicaError> {
        let mut settings = settings.into_iter();
        settings
            .try_for_each(|(name, value)| self.meet(&format!("the setting {name}: {value}")))?;
        self.meet("the last setting")
    }

    /// The numbers of all processes, in the order of their ranks.
    ///
    /// # Errors
    ///
    /// If a process does something else, as its `what` says.
    pub fn numbers(&self, what: &str, number: f64) -> Result<Vec<f64>, ReplicaError> {
        let pending = self.begin(what.into(), move |communicator| {
            communicator.all_gather(&number.to_ne_bytes())
        });
        let numbers = pending.wait()?;
        let numbers = numbers.chunks_exact(size_of::<f64>());
        let number = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().expect("a number"));
        Ok(numbers.map(number).collect())
    }

    /// The flag of the first process.
    ///
    /// # Errors
    ///
    /// If a process does something else, as its `what` says.
    pub fn first_says(&self, what: &str, flag: bool) -> Result<bool, ReplicaError> {
        let pending = self.begin(what.into(), move |communicator| {
            let mut said = [u8::from(flag)];
            communicator.broadcast(0, &mut said)?;
            Ok(said == [1])
        });
        pending.wait()
    }

    /// Begins what all replicas do under this name.
    pub fn begin<T: Send + 'static>(
        &self,
        what: String,
        work: impl FnOnce(&dyn Communicator) -> Result<T, CommunicationError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, answer) = mpsc::channel();
        let name = what.clone();
        let job = Job::Run(Box::new(move |channel| {
            // Nobody may be waiting any more.
            let _ = sender.send(channel.agree_and_do(&name, work));
        }));
        // Where the thread is gone, the answer says so.
        if let Some(jobs) = &self.thread.jobs {
            let _ = jobs.send(job);
        }
        Pending {
            what,
            answer,
            replicas: self.clone(),
        }
    }
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Errors
    ///
    /// If a process does something else, does not come in time, or cannot be reached.
    pub fn wait(self) -> Result<T, ReplicaError> {
        let thread = &self.replicas.thread;
        if let Some(error) = lock(&thread.failed).clone() {
            return Err(error);
        }
        let answer = self.answer.recv_timeout(self.replicas.timeout);
        let answer = answer.unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Timeout => ReplicaError::Timeout {
                    rank: thread.rank,
                    size: thread.size,
                    waited: self.replicas.timeout,
                    what: self.what,
                },
                RecvTimeoutError::Disconnected => {
                    failure(&"the thread that talks to the other processes has panicked".into())
                }
            })
        });
        if let Err(error) = &answer {
            *lock(&thread.failed) = Some(error.clone());
        }
        answer
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
    fn agree_and_do<T>(
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

impl Drop for Replicas {
    fn drop(&mut self) {
        *lock(&self.thread.patience) = self.timeout;
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

fn failure(error: &CommunicationError) -> ReplicaError {
    ReplicaError::Communication {
        reason: error.to_string(),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replicas")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

//! The processes that train replicas of a model.

use std::{
    fmt::Display,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use crate::{
    channel::{Job, Thread, failure, lock},
    communicator::{CommunicationError, Communicator},
    error::ReplicaError,
    threads::Threads,
};

/// How long a process waits for the others, unless it is told.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The processes that train replicas of a model together: this one's place among them.
///
/// All of them do the same things in the same order. Each thing has a name, which they compare
/// before they do it, so that a process that has gone another way is an error on all of them, which
/// says who does what. After an error, the others are ended by letting this process end: they wait
/// two seconds for it to say why.
///
/// The communication is done by a thread, so that the next gradient can be computed meanwhile.
/// Clones are the same processes. When the last one is dropped, this process says goodbye to the
/// others, and waits until they do the same, at most for its [timeout](Replicas::with_timeout). If
/// this happens while a panic unwinds, it ends all of them.
#[derive(Clone)]
pub struct Replicas {
    thread: Arc<Thread>,
    timeout: Duration,
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
        Ok(Self {
            thread: Arc::new(Thread::start(timeout, connect)?),
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

impl Drop for Replicas {
    fn drop(&mut self) {
        *lock(&self.thread.patience) = self.timeout;
    }
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

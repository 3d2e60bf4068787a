//! Replicas that are threads of one process.

use std::{
    mem,
    panic::resume_unwind,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{
    Replicas,
    communicator::{CommunicationError, Communicator},
};

/// One of the threads.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    size: usize,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct Meeting {
    round: Mutex<Round>,
    changed: Condvar,
}

/// One exchange between the threads.
#[derive(Debug)]
struct Round {
    /// By rank.
    brought: Vec<Option<Vec<u8>>>,
    /// How many threads have not taken what all have brought. They do before the next round begins.
    to_take: usize,
    is_over: bool,
}

impl Threads {
    /// As many threads as there are to be, by rank.
    #[allow(clippy::new_ret_no_self)] // One alone would have nobody to meet.
    pub fn new(size: usize) -> Vec<Self> {
        let meeting = Arc::new(Meeting {
            round: Mutex::new(Round {
                brought: vec![None; size],
                to_take: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        (0..size)
            .map(|rank| Self {
                rank,
                size,
                meeting: meeting.clone(),
            })
            .collect()
    }

    /// Runs `work` in as many replicas, each on a thread of its own. What each returns, by rank.
    ///
    /// # Panics
    ///
    /// If one of them panics.
    pub fn run<T: Send>(size: usize, work: impl Fn(Replicas) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let threads: Vec<_> = Self::new(size)
                .into_iter()
                .map(|thread| {
                    let work = &work;
                    let replicas = Replicas::of_threads(thread);
                    scope.spawn(move || work(replicas.expect("a thread can be started")))
                })
                .collect();
            let done = threads.into_iter().map(|thread| thread.join());
            done.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        })
    }

    /// The bytes of all threads, by rank.
    fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommunicationError> {
        let mut round = self.wait_while(self.lock(), |round| round.to_take > 0)?;
        round.brought[self.rank] = Some(bytes.to_vec());
        if round.brought.iter().all(Option::is_some) {
            round.to_take = self.size;
            self.meeting.changed.notify_all();
        }
        let mut round = self.wait_while(round, |round| round.to_take == 0)?;
        round.to_take -= 1;
        if round.to_take > 0 {
            return Ok(round.brought.iter().flatten().cloned().collect());
        }
        self.meeting.changed.notify_all();
        Ok(round.brought.iter_mut().filter_map(mem::take).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Round> {
        let round = self.meeting.round.lock();
        round.unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &'a self,
        round: MutexGuard<'a, Round>,
        condition: impl Fn(&Round) -> bool,
    ) -> Result<MutexGuard<'a, Round>, CommunicationError> {
        let is_awaited = |round: &mut Round| !round.is_over && condition(round);
        let changed = self.meeting.changed.wait_while(round, is_awaited);
        let round = changed.unwrap_or_else(PoisonError::into_inner);
        // What all have brought can still be taken.
        match condition(&round) {
            true => Err("the thread of another replica has panicked".into()),
            false => Ok(round),
        }
    }
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        Ok(self.exchange(bytes)?.concat())
    }

    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let all = self.exchange(bytes)?.concat();
        Ok(if root == self.rank { all } else { Vec::new() })
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let all = self.exchange(bytes)?;
        let part = bytes.len() / all.len();
        let parts = all.iter().map(|bytes| &bytes[self.rank * part..][..part]);
        Ok(parts.collect::<Vec<_>>().concat())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        bytes.copy_from_slice(&self.exchange(bytes)?[root]);
        Ok(())
    }

    /// Ends the meeting: who waits for this thread gets an error.
    fn abort(&self) {
        self.lock().is_over = true;
        self.meeting.changed.notify_all();
    }
}

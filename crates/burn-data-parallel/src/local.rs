//! Processes that are threads of one, for tests.

use std::sync::{Arc, Barrier, Mutex};

use crate::{
    Replicas,
    communicator::{CommunicationError, Communicator},
};

/// One of the threads.
pub(crate) struct Local {
    rank: usize,
    table: Arc<Mutex<Vec<Vec<u8>>>>,
    barrier: Arc<Barrier>,
}

impl Local {
    fn exchange(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.table.lock().unwrap()[self.rank] = bytes.to_vec();
        self.barrier.wait();
        let all = self.table.lock().unwrap().clone();
        self.barrier.wait();
        all
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.table.lock().unwrap().len()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        Ok(self.exchange(bytes).concat())
    }

    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let all = self.exchange(bytes).concat();
        Ok(if root == self.rank { all } else { Vec::new() })
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let all = self.exchange(bytes);
        let part = bytes.len() / all.len();
        let parts = all.iter().map(|bytes| &bytes[self.rank * part..][..part]);
        Ok(parts.collect::<Vec<_>>().concat())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        bytes.copy_from_slice(&self.exchange(bytes)[root]);
        Ok(())
    }

    fn abort(&self) {}
}

/// Runs `work` in as many replicas; what each returns, by rank.
pub(crate) fn replicas<T: Send>(size: usize, work: impl Fn(Replicas) -> T + Sync) -> Vec<T> {
    let table = Arc::new(Mutex::new(vec![Vec::new(); size]));
    let barrier = Arc::new(Barrier::new(size));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (table, barrier) = (table.clone(), barrier.clone());
                let work = &work;
                scope.spawn(move || {
                    let local = Local {
                        rank,
                        table,
                        barrier,
                    };
                    work(Replicas::new(move || Ok(local)).unwrap())
                })
            })
            .collect();
        let done = threads.into_iter().map(|thread| thread.join().unwrap());
        done.collect()
    })
}

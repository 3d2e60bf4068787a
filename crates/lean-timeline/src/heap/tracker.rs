//! The events of the allocator.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker};

use super::session::Session;

/// Allocations of fewer bytes are counted, and are in no holder.
pub const SMALL: u64 = 1024;

/// The heap from the first recording on.
pub(super) struct Tracked {
    pub(super) in_use: u64,
    /// The most bytes in use since the last sample.
    pub(super) peak: u64,
    /// Addresses and sizes of what is in use, but for small allocations.
    pub(super) live: HashMap<usize, u64, BuildHasherDefault<DefaultHasher>>,
    /// Addresses that were taken again before the thread that has released them could tell.
    overtaken: Vec<usize>,
    /// The recording under way.
    pub(super) session: Option<Session>,
}

static TRACKED: Mutex<Tracked> = Mutex::new(Tracked {
    in_use: 0,
    peak: 0,
    live: HashMap::with_hasher(BuildHasherDefault::new()),
    overtaken: Vec::new(),
    session: None,
});

thread_local! {
    /// The work of this thread in a pass or step that it has begun. Neither needs memory nor has a
    /// destructor, so that the allocator may read it at any moment.
    static WORK: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Ignores poisoning: a panic ends the training, and what was recorded until then is sound.
fn lock() -> MutexGuard<'static, Tracked> {
    TRACKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works with what is tracked. The memory that `work` takes itself is not.
pub(super) fn with_tracked<R>(work: impl FnOnce(&mut Tracked) -> R) -> R {
    AllocationRegistry::untracked(|| work(&mut lock()))
}

/// The name of the work of this thread; `None` outside of a pass or step that it has begun.
pub(super) fn work() -> Option<&'static str> {
    // A thread that ends has no more work.
    WORK.try_with(Cell::get).ok().flatten()
}

/// Names the work of this thread. Returns what it was before.
pub(super) fn set_work(work: Option<&'static str>) -> Option<&'static str> {
    WORK.replace(work)
}

/// Begins to track, and never ends: memory of a recording may be released after it. Returns whether
/// the allocator of the program tells of its calls.
pub(super) fn begin() -> bool {
    // Another recording may have set it.
    let _ = AllocationRegistry::set_global_tracker(Tracker);
    AllocationRegistry::enable_tracking();
    let probe = std::hint::black_box(vec![0_u8; SMALL as usize]);
    with_tracked(|tracked| tracked.live.contains_key(&probe.as_ptr().addr()))
}

struct Tracker;

impl AllocationTracker for Tracker {
    fn allocated(&self, address: usize, bytes: usize, _: usize, _: AllocationGroupId) {
        let bytes = bytes as u64;
        let mut tracked = lock();
        tracked.in_use += bytes;
        tracked.peak = tracked.peak.max(tracked.in_use);
        if bytes >= SMALL {
            if tracked.live.insert(address, bytes).is_some() {
                tracked.overtaken.push(address);
                tracked.record(|session| session.released(address, None));
            }
            tracked.record(|session| session.allocated(address, bytes, work()));
        }
    }

    fn deallocated(
        &self,
        address: usize,
        bytes: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
        let bytes = bytes as u64;
        let mut tracked = lock();
        tracked.in_use = tracked.in_use.saturating_sub(bytes);
        if bytes >= SMALL {
            let overtaken = tracked.overtaken.iter().position(|other| *other == address);
            if let Some(index) = overtaken {
                tracked.overtaken.swap_remove(index);
                return;
            }
            tracked.live.remove(&address);
            tracked.record(|session| session.released(address, work()));
        }
    }
}

impl Tracked {
    /// Notes an event in the recording under way, and samples what is in use after it.
    pub(super) fn record(&mut self, event: impl FnOnce(&mut Session)) {
        if let Some(session) = self.session.as_mut().filter(|session| session.is_open()) {
            event(session);
            session.ledger.sample(self.in_use, self.peak);
            self.peak = self.in_use;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An allocator releases before it tells: another thread can take the address in between.
    #[test]
    fn an_address_is_taken_again_before_its_release_is_told() {
        let (address, root) = (4096, AllocationGroupId::ROOT);
        let taken = |bytes| Tracker.allocated(address, bytes, bytes, root.clone());
        let released =
            |bytes| Tracker.deallocated(address, bytes, bytes, root.clone(), root.clone());
        let live = || with_tracked(|tracked| tracked.live.get(&address).copied());
        taken(2000);
        taken(3000);
        released(2000);
        assert_eq!(live(), Some(3000));
        released(3000);
        assert_eq!(live(), None);
        assert_eq!(with_tracked(|tracked| tracked.in_use), 0);
    }
}

//! The number of a tensor's block in a recording.

use std::sync::atomic::{AtomicU64, Ordering};

use lean_timeline::ledger::BlockId;

/// A block of one of the recordings of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) recording: u32,
    pub(super) block: BlockId,
}

/// An [`Entry`], or none, which threads share without a lock.
#[derive(Debug, Default)]
pub(super) struct EntryCell(AtomicU64);

impl EntryCell {
    pub(super) fn new(entry: Option<Entry>) -> Self {
        Self(AtomicU64::new(entry.map_or(EMPTY, pack)))
    }

    pub(super) fn get(&self) -> Option<Entry> {
        unpack(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, entry: Entry) {
        self.0.store(pack(entry), Ordering::Release);
    }

    /// Leaves none.
    pub(super) fn take(&self) -> Option<Entry> {
        unpack(self.0.swap(EMPTY, Ordering::AcqRel))
    }
}

const EMPTY: u64 = 0;

fn pack(entry: Entry) -> u64 {
    // One more than the index, so that no entry is packed as `EMPTY`.
    let block = entry.block as u64 + 1;
    u64::from(entry.recording) << 32 | block
}

fn unpack(packed: u64) -> Option<Entry> {
    (packed != EMPTY).then(|| Entry {
        recording: (packed >> 32) as u32,
        block: (packed & u64::from(u32::MAX)) as usize - 1,
    })
}

//! What ties a tensor to the block that it lies in.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{ledger::BlockId, state};

/// A tensor as the recorder knows it; dropped with the last of its copies.
#[derive(Debug)]
pub(crate) struct Held(AtomicU64);

/// Which block of which recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) recording: u32,
    pub(super) block: BlockId,
}

impl Held {
    /// A tensor that is in no recording.
    pub(super) fn unknown() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn of(entry: Entry) -> Self {
        let held = Self::unknown();
        held.enter(entry);
        held
    }

    pub(super) fn enter(&self, entry: Entry) {
        let block = entry.block as u64 + 1;
        let value = u64::from(entry.recording) << 32 | block;
        self.0.store(value, Ordering::Release);
    }

    pub(super) fn entry(&self) -> Option<Entry> {
        let value = self.0.load(Ordering::Acquire);
        (value != 0).then(|| Entry {
            recording: (value >> 32) as u32,
            block: (value & u64::from(u32::MAX)) as usize - 1,
        })
    }

    /// What nobody but the caller is going to hear of.
    pub(super) fn forget(self) -> Option<Entry> {
        let entry = self.entry();
        self.0.store(0, Ordering::Release);
        entry
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(entry) = self.entry() {
            state::let_go(entry);
        }
    }
}

//! Ties a tensor to its block.

use super::{
    entry::{Entry, EntryCell},
    state,
};

/// The recorder's handle of a tensor. All copies of the tensor share one handle, whose drop tells
/// the recorder that the last copy is gone.
#[derive(Debug)]
pub(crate) struct TensorHandle {
    entry: EntryCell,
}

impl TensorHandle {
    /// The handle of a tensor with this entry, or of one that no recording has seen.
    pub(super) fn new(entry: Option<Entry>) -> Self {
        Self {
            entry: EntryCell::new(entry),
        }
    }

    pub(super) fn entry(&self) -> &EntryCell {
        &self.entry
    }

    /// Takes the entry, so that its release is left to the caller.
    pub(super) fn into_entry(self) -> Option<Entry> {
        self.entry.take()
    }
}

impl Drop for TensorHandle {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.get() {
            state::release(entry);
        }
    }
}

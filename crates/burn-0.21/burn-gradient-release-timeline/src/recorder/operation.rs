//! An operation in progress.

use std::sync::Arc;

use super::{
    entry::Entry,
    handle::TensorHandle,
    state::{self, OperandEntry},
    tensor::RecordedTensor,
};
use crate::storage::HasStorage;

/// One operation of the backend, from its operands to its outputs.
///
/// Keeps the handles of its operands until its outputs are registered, so that the recorder
/// recognizes an output that occupies the storage of an operand.
#[derive(Debug)]
pub(crate) struct Operation {
    name: &'static str,
    /// Whether operations were recorded when it began.
    is_recorded: bool,
    operands: Vec<Arc<TensorHandle>>,
}

impl Operation {
    pub(crate) fn begin(name: &'static str) -> Self {
        Self {
            name,
            is_recorded: state::is_recording(),
            operands: Vec::new(),
        }
    }

    /// Unwraps an operand for the backend below.
    pub(crate) fn lower<P: HasStorage>(&mut self, tensor: RecordedTensor<P>) -> P {
        if self.is_recorded {
            tensor.register();
            self.operands.push(tensor.handle);
        }
        tensor.below
    }

    /// Wraps an output of the backend below.
    pub(crate) fn raise<P: HasStorage>(&mut self, below: P) -> RecordedTensor<P> {
        let entry = match self.is_recorded {
            true => state::register_output(self.name, below.storage(), &self.operand_entries()),
            false => None,
        };
        RecordedTensor {
            below,
            handle: Arc::new(TensorHandle::new(entry)),
        }
    }

    fn operand_entries(&self) -> Vec<OperandEntry> {
        let entries = self.operands.iter().filter_map(|handle| {
            Some(OperandEntry {
                entry: handle.entry().get()?,
                is_consumed: Arc::strong_count(handle) == 1,
            })
        });
        entries.collect()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.is_recorded {
            let operands = self.operands.drain(..);
            let released: Vec<Entry> = operands
                .filter_map(|handle| Arc::into_inner(handle)?.into_entry())
                .collect();
            state::end_operation(&released);
        }
    }
}

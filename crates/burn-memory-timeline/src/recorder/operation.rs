//! An operation under way.

use std::sync::Arc;

use super::{
    held::{Entry, Held},
    state,
};
use crate::backend::{HasStorage, RecordedTensor};

/// One operation of the backend, from its operands to its outputs.
///
/// Holds its operands back until its outputs are entered, so that a result in the place of an
/// operand is seen to be one.
#[derive(Debug)]
pub(crate) struct Operation {
    name: &'static str,
    /// Whether a recording is on.
    is_recorded: bool,
    operands: Vec<Arc<Held>>,
}

impl Operation {
    pub(crate) fn begin(name: &'static str) -> Self {
        Self {
            name,
            is_recorded: state::is_on(),
            operands: Vec::new(),
        }
    }

    /// An operand for the backend below.
    pub(crate) fn lower<P: HasStorage>(&mut self, tensor: RecordedTensor<P>) -> P {
        let RecordedTensor { below, held } = tensor;
        if self.is_recorded {
            state::know(&held, &below);
            self.operands.push(held);
        }
        below
    }

    /// An output of the backend below.
    pub(crate) fn raise<P: HasStorage>(&mut self, below: P) -> RecordedTensor<P> {
        let held = if self.is_recorded {
            state::made(self.name, &below, &self.operands)
        } else {
            Held::unknown()
        };
        RecordedTensor {
            below,
            held: Arc::new(held),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.is_recorded {
            let operands = self.operands.drain(..);
            let gone: Vec<Entry> = operands
                .filter_map(|held| Arc::into_inner(held)?.forget())
                .collect();
            state::done(self.name, &gone);
        }
    }
}

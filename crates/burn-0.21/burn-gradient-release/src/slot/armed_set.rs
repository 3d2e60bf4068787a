//! Parameters that are armed together, and the tensors derived from them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};

use crate::{tape::AdTensor, tape::consumers::Consumers, util::lock::lock};

/// A tensor derived from parameters, as a backward pass sees it.
pub(crate) trait Replay<B: Backend>: Send + Sync {
    /// Grows from operand to result.
    fn index(&self) -> u64;

    /// Decides where it runs backward. Tensors derived from this one decide before.
    fn settle(&self);

    /// Puts it on the tape there, to be reached after the nodes below `next`. Returns the node from
    /// which it is reached.
    fn replay(self: Arc<Self>, next: AdTensor<B>, values: &mut Values<B>) -> AdTensor<B>;
}

/// Values of derived tensors that other derived tensors are replayed with, by index, and the number
/// of those that still need each.
pub(crate) type Values<B> = HashMap<u64, (FloatTensor<B>, usize)>;

/// Parameters armed together, and the tensors that forward passes derived from them.
#[derive(Default)]
pub(crate) struct ArmedSet<B: Backend> {
    parameters: Mutex<Vec<Weak<Consumers<B>>>>,
    derived: Mutex<Vec<Weak<dyn Replay<B>>>>,
}

impl<B: Backend> ArmedSet<B> {
    pub(crate) fn add_parameter(&self, consumers: &Arc<Consumers<B>>) {
        lock(&self.parameters).push(Arc::downgrade(consumers));
    }

    pub(crate) fn add_derived(&self, derived: &Arc<dyn Replay<B>>) {
        lock(&self.derived).push(Arc::downgrade(derived));
    }

    pub(crate) fn parameters(&self) -> Vec<Arc<Consumers<B>>> {
        alive(&self.parameters)
    }

    pub(crate) fn derived(&self) -> Vec<Arc<dyn Replay<B>>> {
        alive(&self.derived)
    }
}

/// Values that are still held. Forgets the others.
fn alive<T: ?Sized>(held: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let mut held = lock(held);
    held.retain(|weak| weak.strong_count() > 0);
    held.iter().filter_map(Weak::upgrade).collect()
}

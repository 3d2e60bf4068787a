//! The handle of a tensor, for code that is generic over its backend.
//!
//! Such code cannot name the backend's primitives. [`handle_of`] therefore asks Burn for the device
//! of the tensor. If the backend is a recorded one, its implementation calls [`answer`] with the
//! primitive, and the handle comes back through a thread local.

use std::{cell::RefCell, sync::Arc};

use burn::tensor::{BasicOps, Tensor, TensorKind, backend::Backend};

use super::{handle::TensorHandle, tensor::RecordedTensor};
use crate::storage::HasStorage;

enum Lookup {
    /// No lookup is in progress on this thread.
    Idle,
    /// A lookup is in progress, with its answer once there is one.
    InProgress(Option<Arc<TensorHandle>>),
}

thread_local! {
    static LOOKUP: RefCell<Lookup> = const { RefCell::new(Lookup::Idle) };
}

/// The handle of a tensor; `None` if its backend is not [`Recorded`](crate::Recorded).
pub(super) fn handle_of<B: Backend, const D: usize, K: TensorKind<B> + BasicOps<B>>(
    tensor: &Tensor<B, D, K>,
) -> Option<Arc<TensorHandle>> {
    LOOKUP.set(Lookup::InProgress(None));
    let _ = tensor.device();
    match LOOKUP.replace(Lookup::Idle) {
        Lookup::InProgress(handle) => handle,
        Lookup::Idle => None,
    }
}

/// Answers a lookup, if one is in progress; called where the backend is asked for a tensor's
/// device.
pub(crate) fn answer<P: HasStorage>(tensor: &RecordedTensor<P>) {
    LOOKUP.with_borrow_mut(|lookup| {
        if let Lookup::InProgress(handle) = lookup {
            tensor.register();
            *handle = Some(tensor.handle.clone());
        }
    });
}

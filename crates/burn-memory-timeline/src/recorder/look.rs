//! From a tensor of any backend to what the recorder knows of it.

use std::{cell::RefCell, sync::Arc};

use burn::tensor::{BasicOps, Tensor, TensorKind, backend::Backend};

use super::{held::Held, state};
use crate::backend::{HasStorage, RecordedTensor};

enum Look {
    Away,
    At(Option<Arc<Held>>),
}

thread_local! {
    static LOOK: RefCell<Look> = const { RefCell::new(Look::Away) };
}

/// What the recorder knows of a tensor; `None` if its backend is not [`Recorded`](crate::Recorded).
///
/// Whoever writes a training is generic over a backend whose primitives cannot be named. So the
/// backend itself is asked something, where the tensor lives, and if it is a recorded one it
/// [shows](show) which tensor it was asked about.
pub(super) fn at<B: Backend, const D: usize, K: TensorKind<B> + BasicOps<B>>(
    tensor: &Tensor<B, D, K>,
) -> Option<Arc<Held>> {
    LOOK.set(Look::At(None));
    let _ = tensor.device();
    match LOOK.replace(Look::Away) {
        Look::At(held) => held,
        Look::Away => None,
    }
}

/// Called by the recorded backend when it is asked where a tensor lives.
pub(crate) fn show<P: HasStorage>(tensor: &RecordedTensor<P>) {
    LOOK.with_borrow_mut(|look| {
        if let Look::At(held) = look {
            state::know(&tensor.held, &tensor.below);
            *held = Some(tensor.held.clone());
        }
    });
}

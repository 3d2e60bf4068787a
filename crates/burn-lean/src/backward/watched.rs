//! A backward pass that is watched from its first node on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::backend::autodiff::grads::Gradients;
use burn::tensor::Gradients as TensorGradients;

use super::awaiting::{Frame, Watch, begin};
use super::counts::count;
use crate::backend::{plain, with_backend};
use crate::tape::{Reached, guard, node, node_of, register};

/// From the node that backward has reached, registrations come to those who await them. Returns
/// whether Burn's tape was understood; without that, nothing comes.
pub(crate) fn watch<const N: usize>(
    reached: &mut Reached<'_, N>,
    like: &DispatchTensor,
    leaves: impl IntoIterator<Item = u64>,
) -> bool {
    let mut counts: HashMap<u64, usize> = leaves.into_iter().map(|leaf| (leaf, 0)).collect();
    if !count(reached.checkpointer, reached.id(), &mut counts) {
        return false;
    }
    begin(counts);
    with_backend!(&like.kind, |B, wrap, like| {
        let (root, like) = (reached.ops.node.clone(), like.clone().float());
        *reached.grads = Gradients::new_distributed::<B>(root, like, Box::new(Watch));
    })
    .expect("the backend of a loss is known");
    true
}

/// Runs backward from a loss. The leaves of the frame are awaited. Returns the gradients of all
/// others, and whether Burn's tape was understood.
pub(crate) fn backward(loss: DispatchTensor, frame: &Frame) -> (TensorGradients, bool) {
    let id = node_of(&loss).expect("a loss on a tape has a node");
    let (below, autodiff, leaves) = (guard(&loss), loss.autodiff, frame.leaves());
    let understood = Arc::new(AtomicBool::new(false));
    let noted = understood.clone();
    // A node above the loss runs first.
    let root = node(plain(loss), [below], autodiff, move |mut reached| {
        let grad = reached.grad();
        let is_understood = watch(&mut reached, &grad, leaves);
        noted.store(is_understood, Ordering::Relaxed);
        register(reached.grads, id, grad);
    });
    let grads = Tensor::<1>::from_dispatch(root).backward();
    let understood = understood.load(Ordering::Relaxed);
    (grads, understood)
}

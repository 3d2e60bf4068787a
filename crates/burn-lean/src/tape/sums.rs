//! Takes the sum of the gradients that a node has received so far.
//!
//! Burn gives it out for the tensor of the node. A tensor that waits in the state of another node
//! for a backward pass that may never come keeps its whole graph alive. Burn's container only looks
//! at ids: so a node of our own poses as the other.

use std::sync::{Arc, Mutex};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::Ops;
use burn::backend::{
    AutodiffBackend, Dispatch, DispatchAutodiffContext, DispatchTensor, TensorMetadata,
};
use burn::tensor::GradientCheckpointingStrategy;

use super::node::{Zeros, consume, guard, leaf, node, register};
use crate::lock::lock;

/// A node that backward has given away, once one was needed.
static POSING: Mutex<Option<Ops<(), 1>>> = Mutex::new(None);

/// Takes the sum of the gradients of a node, if it has received any. `like` has their shape and
/// type.
pub(crate) fn take_sum(
    node: NodeId,
    like: &DispatchTensor,
    grads: &mut Gradients,
) -> Option<DispatchTensor> {
    let numbers = like.shape().num_elements();
    if numbers == 0 {
        return None;
    }
    // Burn panics if there is no sum. This one element changes none, and is returned alone if there was
    // none: it is fewer than those of a sum, or itself, which is held here and so not unique.
    let zero = Zeros::like(like).one();
    register(grads, node, zero.clone());
    let mut posing = lock(&POSING);
    let posing = posing.get_or_insert_with(|| given_away(&zero));
    let own = Arc::get_mut(&mut posing.node);
    own.expect("a root belongs to its pass alone").id = node;
    let sum = consume(grads, posing, like);
    let is_sum = match numbers {
        // Some backends say of no tensor that it is unique, or not yet.
        1 => sum.can_mut() || !is_negative_zero(&sum),
        _ => sum.shape().num_elements() == numbers,
    };
    drop(zero);
    is_sum.then_some(sum)
}

fn is_negative_zero(number: &DispatchTensor) -> bool {
    // Any rank will do.
    let number = Tensor::<1>::from_dispatch(number.clone()).into_data();
    let mut numbers = number.iter::<f64>();
    numbers.all(|number| number == 0.0 && number.is_sign_negative())
}

/// The node of a pass that does nothing else.
fn given_away(scalar: &DispatchTensor) -> Ops<(), 1> {
    let given = Arc::new(Mutex::new(None));
    let taker = given.clone();
    let autodiff = DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::default());
    let parent = guard(&leaf(scalar.clone(), autodiff));
    let root = node(scalar.clone(), [parent], autodiff, move |reached| {
        *lock(&taker) = Some(reached.ops);
    });
    Dispatch::backward(root);
    let given = lock(&given).take();
    given.expect("backward has run the root")
}

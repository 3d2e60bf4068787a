//! Takes the sum of the gradients that a node has received so far.
//!
//! Burn gives it out for the tensor of the node. A tensor that waits in the state of another node
//! for a backward pass that may never come keeps its whole graph alive. Burn's container only looks
//! at ids: so a node of our own poses as the other.

use std::sync::{Arc, Mutex};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, AutodiffBackend};
use burn::tensor::{FloatDType, Shape};

use super::leaf_hook::negative_zero;
use crate::backend::{Inner, Primitive, TakeSum, Tracked};
use crate::lock::lock;

/// Takes the sum of the gradients of a node, if it has received any. `like` has their shape and
/// type.
pub(crate) fn take_sum<B: Inner>(
    node: NodeId,
    like: &Primitive<B>,
    grads: &mut Gradients,
) -> Option<Primitive<B>> {
    let numbers = like.shape().num_elements();
    if numbers == 0 {
        return None;
    }
    // Burn panics if there is no sum. This one element changes none, and tells whether there was
    // one: it is returned alone if not.
    grads.register::<B>(node, negative_zero::<B>(like));
    let mut take = B::take_sum();
    let take = take.get_or_insert_with(|| make::<B>(&like.device()));
    let sum = take(node, grads);
    (sum.shape().num_elements() == numbers).then_some(sum)
}

/// Runs a pass over a node that backward gives away.
fn make<B: Inner>(device: &B::Device) -> TakeSum<B> {
    let made = Given::<B>::default();
    let scalar = || B::float_zeros(Shape::new([1]), device, FloatDType::F32);
    let leaf = <Tracked<B>>::new(scalar()).require_grad();
    let root = match <Root as Backward<B, 1>>::prepare::<NoCheckpointing>(Root, [leaf.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(made.clone(), scalar()),
        OpsKind::UnTracked(_) => unreachable!("its parent is tracked"),
    };
    Autodiff::<B>::backward(root);
    let take = lock(&made.0).take();
    take.expect("backward has run the root")
}

#[derive(Debug)]
struct Root;

struct Given<B: Inner>(Arc<Mutex<Option<TakeSum<B>>>>);

impl<B: Inner> Default for Given<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<B: Inner> Clone for Given<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Inner> std::fmt::Debug for Given<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Given")
    }
}

impl<B: Inner> Backward<B, 1> for Root {
    type State = Given<B>;

    fn backward(self, ops: Ops<Given<B>, 1>, _: &mut Gradients, _: &mut Checkpointer) {
        let mut node = ops.node;
        *lock(&ops.state.0) = Some(Box::new(move |id, grads| {
            let posing = Arc::get_mut(&mut node);
            posing.expect("a root belongs to its pass alone").id = id;
            grads.consume::<B>(&node)
        }));
    }
}

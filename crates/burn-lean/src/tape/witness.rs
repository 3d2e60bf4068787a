//! Which of several nodes is the last one that a backward pass reaches.
//!
//! Burn's checkpointer counts, for each node, the requests of the nodes that a pass reaches. It clones a
//! state that is requested again, and moves it out on the last request.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};

use crate::backend::{Inner, Primitive, Tracked};

#[derive(Debug)]
struct Witness {
    requested_again: bool,
}

impl Clone for Witness {
    fn clone(&self) -> Self {
        Self {
            requested_again: true,
        }
    }
}

#[derive(Debug)]
struct GiveWitness;

impl RetroForward for GiveWitness {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let first = Witness {
            requested_again: false,
        };
        states.save(node, first);
    }
}

#[derive(Debug)]
struct Identity;

impl<B: Inner> Backward<B, 1> for Identity {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {
        unreachable!("it needs no gradient")
    }
}

/// A leaf whose requests are counted.
///
/// A node without gradients that is bound by memory keeps what makes it; `require_grad` makes a leaf of
/// it, which still has that.
pub(crate) fn counted_leaf<B: Inner>(primitive: Primitive<B>) -> Tracked<B> {
    let (primitive, below) = <Tracked<B>>::new(primitive).into_parts();
    match <Identity as Backward<B, 1>>::prepare::<BalancedCheckpointing>(Identity, [below])
        .memory_bound()
        .retro_forward(GiveWitness)
        .parents::<B, [&Tracked<B>; 0]>([])
        .stateful()
    {
        OpsKind::UnTracked(prep) => prep.finish(primitive).require_grad(),
        OpsKind::Tracked(_) => unreachable!("it needs no gradient"),
    }
}

/// Whether this request of a counted leaf is the last of the pass.
pub(crate) fn is_last_request(leaf: NodeId, checkpointer: &mut Checkpointer) -> bool {
    !checkpointer
        .retrieve_node_output::<Witness>(leaf)
        .requested_again
}

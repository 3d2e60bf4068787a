//! The node on the tape that steps a parameter.
//!
//! Every operation that consumes an armed parameter has the parameter's *tap* for a parent. The
//! contributions to the gradient add up under the tap's node in Burn's own container, in the order
//! of Burn's own tape: the sum is the one plain Burn computes, bit for bit. Burn runs the tape
//! deepest first, so a tap that lies below every consumer finds the sum complete.

use std::sync::Weak;

use burn::tensor::{
    backend::{AutodiffBackend, Backend},
    ops::FloatTensor,
};
use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use crate::{
    pass,
    slot::Slot,
    tensor::{AdTensor, at_order},
};

/// How an operation uses a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// One node on the tape, one level above its operands.
    Single,
    /// Possibly several nodes, of which only the lowest level is known.
    Composite,
}

/// The tap of one parameter and what is known about its consumers.
pub(crate) struct TapSite<B: Backend> {
    tap: Option<AdTensor<B>>,
    depth: usize,
    depth_hint: Option<usize>,
    /// Stands for the weight in the tap's own tensor, so that the tap keeps no weight alive.
    placeholder: FloatTensor<B>,
    /// Whether backward has come by.
    pub(crate) fired: bool,
    consumers: usize,
    lowest_level: usize,
    /// Whether all consumers so far are single nodes.
    single: bool,
    last_operation: Option<u64>,
}

impl<B: Backend> TapSite<B> {
    pub(crate) fn new(placeholder: FloatTensor<B>, depth_hint: Option<usize>) -> Self {
        Self {
            tap: None,
            depth: 0,
            depth_hint,
            placeholder,
            fired: false,
            consumers: 0,
            lowest_level: usize::MAX,
            single: true,
            last_operation: None,
        }
    }

    pub(crate) fn placeholder(&self) -> FloatTensor<B> {
        self.placeholder.clone()
    }

    pub(crate) fn tap(&self) -> Option<AdTensor<B>> {
        self.tap.clone()
    }

    /// Where to put the tap, seen from the first consumer: below it, or where the previous step
    /// would have wanted it.
    ///
    /// The depth only decides *when* the parameter is stepped, never with what.
    pub(crate) fn depth(&self, order: usize, usage: Use) -> usize {
        let highest = match usage {
            Use::Single => order + 1,
            Use::Composite => order,
        };
        self.depth_hint.unwrap_or(order).min(highest).max(1)
    }

    /// Sets the tap, unless another thread was faster.
    pub(crate) fn set(&mut self, tap: AdTensor<B>, depth: usize) {
        if self.tap.is_none() {
            self.tap = Some(tap);
            self.depth = depth;
        }
    }

    /// Notes a consumer one level above `order` or higher.
    pub(crate) fn consume(
        &mut self,
        order: usize,
        usage: Use,
        operation: u64,
    ) -> Option<AdTensor<B>> {
        let tap = self.tap.clone()?;
        // An operation may have the parameter for both its operands.
        if self.last_operation.replace(operation) != Some(operation) {
            self.consumers += 1;
            self.lowest_level = self.lowest_level.min(order + 1);
            self.single &= usage == Use::Single;
        }
        Some(tap)
    }

    /// Whether every consumer has run when the tap fires: those above it have, and one on its own
    /// level has if it is the only one, because Burn then reaches the tap through it.
    pub(crate) fn is_complete(&self) -> bool {
        self.depth < self.lowest_level || (self.depth == self.lowest_level && self.is_alone())
    }

    /// Where the tap should have been: the highest depth at which it is complete.
    pub(crate) fn next_depth(&self) -> Option<usize> {
        self.tap.as_ref()?;
        Some(if self.is_alone() {
            self.lowest_level
        } else {
            self.lowest_level - 1
        })
    }

    fn is_alone(&self) -> bool {
        self.consumers == 1 && self.single
    }
}

/// The tap's hold on its slot. Weak: a forward pass that was thrown away must not keep the weights.
///
/// Leaving the tape without having stepped, it leaves the slot to the end of the pass: it fired
/// before the last contribution, or it lay deeper than the root of this backward, from where Burn
/// drops it without running it.
#[derive(Clone, Debug)]
struct Watch<B: Backend>(Weak<Slot<B>>);

impl<B: Backend> Drop for Watch<B> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.upgrade().filter(|slot| slot.is_waiting()) {
            pass::defer(slot);
        }
    }
}

/// Puts a tap above a leaf, at the given depth of the tape.
pub(crate) fn register<B: Backend>(
    leaf: &AdTensor<B>,
    placeholder: FloatTensor<B>,
    depth: usize,
    slot: Weak<Slot<B>>,
) -> AdTensor<B> {
    /// Takes the complete gradient off the tape and steps the parameter with it. Registers none
    /// for the leaf below.
    #[derive(Debug)]
    struct Tap;

    impl<B: Backend> Backward<B, 1> for Tap {
        type State = Watch<B>;

        fn backward(
            self,
            ops: Ops<Self::State, 1>,
            grads: &mut Gradients,
            _checkpointer: &mut Checkpointer,
        ) {
            if let Some(slot) = ops.state.0.upgrade() {
                slot.fire(grads);
            }
        }
    }

    let parent = at_order::<B>(leaf, placeholder.clone(), depth - 1);
    match Backward::<B, 1>::prepare::<NoCheckpointing>(Tap, [parent.node])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(Watch(slot), placeholder),
        OpsKind::UnTracked(_) => unreachable!("an armed leaf requires gradients"),
    }
}

/// Runs an empty backward from `node`, upon which Burn drops every graph built on it.
pub(crate) fn discard<B: Backend>(node: AdTensor<B>) {
    #[derive(Debug)]
    struct Discard;

    impl<B: Backend> Backward<B, 1> for Discard {
        type State = ();

        fn backward(self, _ops: Ops<(), 1>, _grads: &mut Gradients, _: &mut Checkpointer) {}
    }

    let root = Backward::<B, 1>::prepare::<NoCheckpointing>(Discard, [node.node])
        .compute_bound()
        .stateless(node.primitive);
    drop(Autodiff::<B>::backward(root));
}

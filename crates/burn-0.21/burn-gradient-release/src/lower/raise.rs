//! The result of an operation as a release tensor.

use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn_autodiff::NodeId;

use crate::{
    subgraph::order::{Consumer, Edge, Target},
    subgraph::uses::KnownOperands,
    subgraph::{Origins, Subgraph},
    tape::consumers::{self, Consumers},
    tape::{self, AdTensor, handle},
    tensor::{ReleaseTensor, Repr},
};

/// Number of nodes that an operation has on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// No node: the root of a backward pass.
    None,
    /// One node, right above the operands.
    One,
    /// Not known before the result.
    Unknown,
    /// Several nodes.
    Several,
}

/// Origins and operands of an operation, for its results.
pub(crate) struct Raise<B: Backend> {
    pub(crate) origins: Origins<B>,
    pub(crate) nodes: Nodes,
    /// The order of an operation that is one node.
    pub(crate) order: usize,
    /// Held until the operation is on the tape: Burn's `cat` drops them before, and a pass that
    /// ends on another thread frees graphs that nothing holds.
    pub(crate) operands: Vec<Arc<NodeId>>,
    /// Targets of the operands' gradients, if the operation is in a subgraph.
    pub(crate) tensors: Vec<(usize, Target)>,
    /// The tensors of its subgraph that it uses.
    pub(crate) known: KnownOperands<B>,
    /// Consumers to note once the result is known, and the lowest order they can have.
    pub(crate) unknown: Vec<(Arc<Consumers<B>>, usize)>,
}

impl<B: Backend> Raise<B> {
    /// The operand at this place.
    pub(crate) fn lower(
        &mut self,
        place: usize,
        tensor: ReleaseTensor<B>,
        is_repeated: bool,
    ) -> AdTensor<B> {
        match tensor.0 {
            Repr::Plain(tensor, origins) => {
                self.origins.join(&origins);
                match origins.subgraph() {
                    Some(subgraph) => self.use_in(subgraph, place, tensor),
                    None => tensor,
                }
            }
            Repr::Snapshot(snapshot) => {
                self.origins.join(&snapshot.site.origins);
                let consumers = snapshot.site.consumers.clone();
                let leaf = snapshot.into_leaf();
                let is_lowest = self.note(&consumers, leaf.node.order, is_repeated);
                let operand = if is_lowest && consumers.is_awaited() {
                    let hook = consumers::leaf_hook(&consumers, self.order);
                    // Replaces the leaf, with its order.
                    handle::<B>(&hook, leaf.primitive, leaf.node.order)
                } else {
                    leaf
                };
                consumers.operand(operand)
            }
            Repr::Derived(derived) => {
                self.origins.join(derived.origins());
                let (tensor, consumers) = derived.on_tape();
                self.note(&consumers, tensor.node.order, is_repeated);
                tensor
            }
            Repr::Live(_) | Repr::Replayable(_) => {
                unreachable!("`push` reads the owner, `meet` leaves nothing recorded")
            }
        }
    }

    /// The operand under a use node, if it needs one.
    fn use_in(&mut self, subgraph: &Subgraph<B>, place: usize, tensor: AdTensor<B>) -> AdTensor<B> {
        // A use node that runs before another node of the operation would lose that node's
        // contribution.
        if self.nodes != Nodes::One {
            return tensor;
        }
        let operand = subgraph.operand(tensor, self.order, &mut self.known);
        if let Some((_, target)) = self.tensors.iter_mut().find(|(of, _)| *of == place) {
            *target = Target::OnTape(operand.node.id);
        }
        operand
    }

    /// Notes the use of an operand of the given order. Returns whether it is the only use of the
    /// lowest order.
    fn note(&mut self, consumers: &Arc<Consumers<B>>, order: usize, is_repeated: bool) -> bool {
        match self.nodes {
            Nodes::None | Nodes::One => {
                consumers.consume(self.order, if is_repeated { 2 } else { 1 })
            }
            Nodes::Unknown => {
                self.unknown.push((consumers.clone(), order + 1));
                false
            }
            Nodes::Several => consumers.consume(order + 1, 2),
        }
    }

    pub(crate) fn into_origins(self) -> Origins<B> {
        self.origins
    }

    /// The result of the operation.
    ///
    /// # Panics
    ///
    /// If an operation of Burn is not one node, as expected.
    pub(crate) fn float(&self, result: AdTensor<B>) -> ReleaseTensor<B> {
        if !self.origins.is_none() {
            // A result whose parents are all operands is one node, unless it is an operand itself.
            let node = &result.node;
            let mut parents = node.parents.iter();
            let is_one =
                parents.all(|parent| self.operands.iter().any(|operand| **operand == parent.id));
            if self.nodes == Nodes::One {
                tape::check_one_node(is_one);
            }
            let is_one = is_one && !node.parents.is_empty();
            for (consumers, lowest) in &self.unknown {
                // The node's own order: not every operand need be a parent.
                consumers.consume(if is_one { node.order } else { *lowest }, 2);
            }
        }
        // An operand that is returned is noted as the result of its own operation.
        let is_operand = self.operands.contains(&result.rc);
        if let Some(subgraph) = self.origins.subgraph().filter(|_| !is_operand) {
            subgraph.note(Edge {
                consumer: Consumer::Kept(result.node.id),
                order: result.node.order,
                operands: self.tensors.clone(),
            });
        }
        ReleaseTensor(Repr::Plain(result, self.origins.clone()))
    }
}

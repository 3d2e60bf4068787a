//! Use nodes: nodes for single uses of a tensor by kept operations.
//!
//! The contributions of these operations add up as they come, which is plain Burn's order. A
//! contribution from elsewhere may belong between two of them:
//! - The segment itself uses its result, too, and runs later. Each use has a node, under which its
//!   contribution can stay until then.
//! - Segments above use another tensor, and have run before. A contribution that belongs between
//!   operations of two orders is added after all those of the higher order. Of several operations
//!   of one order, all but one have a node, which adds the contributions that belong right before
//!   or after them.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, Mutex},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::{
    tape::{self, AdTensor},
    util::lock::lock,
};

/// The uses of one subgraph.
#[derive(Default)]
pub(crate) struct Uses<B: Backend> {
    /// The leaves of the segment's results.
    results: HashSet<NodeId>,
    /// Orders at which other tensors are used.
    orders: HashSet<(NodeId, usize)>,
    /// The uses that have a node, by the tensor.
    nodes: HashMap<NodeId, Vec<UseNode<B>>>,
    placeholder: Option<FloatTensor<B>>,
}

pub(crate) struct UseNode<B: Backend> {
    pub(crate) id: NodeId,
    passing: SharedPassing<B>,
}

/// A contribution that waits at several places: the first to run adds it.
pub(crate) type Waiting<B> = Arc<Mutex<Option<FloatTensor<B>>>>;

/// How an operation's contributions to one gradient are passed on.
#[derive(Default)]
struct Passing<B: Backend> {
    /// In the order of its operands.
    nodes: Vec<NodeId>,
    /// Whether the contributions stay under `nodes`.
    is_apart: bool,
    before: Vec<Waiting<B>>,
    after: Vec<Waiting<B>>,
}

type SharedPassing<B> = Arc<Mutex<Passing<B>>>;

/// The tensors among the known operands of an operation, which may use one twice.
#[derive(Default)]
pub(crate) struct KnownOperands<B: Backend>(Vec<(NodeId, Option<SharedPassing<B>>)>);

impl<B: Backend> UseNode<B> {
    /// Sets whether the contribution stays here, or goes on to the tensor.
    pub(crate) fn set_apart(&self, is_apart: bool) {
        lock(&self.passing).is_apart = is_apart;
    }

    /// Adds this right before the contribution.
    pub(crate) fn precede(&self, gradient: Waiting<B>) {
        lock(&self.passing).before.push(gradient);
    }

    /// Adds this right after the contribution.
    pub(crate) fn follow(&self, gradient: Waiting<B>) {
        lock(&self.passing).after.push(gradient);
    }
}

/// Adds the contributions that were not added elsewhere to the gradient of a node.
pub(crate) fn add_waiting<B: Backend>(
    id: NodeId,
    waiting: impl IntoIterator<Item = Waiting<B>>,
    grads: &mut Gradients,
) {
    for gradient in waiting {
        let gradient = lock(&gradient).take();
        if let Some(gradient) = gradient {
            grads.register::<B>(id, gradient);
        }
    }
}

impl<B: Backend> Uses<B> {
    /// Notes the leaf of a result of the segment.
    pub(crate) fn add_result(&mut self, leaf: NodeId) {
        self.results.insert(leaf);
    }

    /// The uses that have a node, by the tensor.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, &UseNode<B>)> {
        let nodes = self.nodes.iter();
        nodes.flat_map(|(of, nodes)| nodes.iter().map(|node| (*of, node)))
    }

    pub(crate) fn of(&self, tensor: NodeId) -> &[UseNode<B>] {
        self.nodes.get(&tensor).map_or(&[], Vec::as_slice)
    }

    /// The tensor as the operand of an operation, which is one node of this order, under a use
    /// node; `None` if it needs none.
    pub(crate) fn operand(
        &mut self,
        tensor: &AdTensor<B>,
        order: usize,
        known: &mut KnownOperands<B>,
    ) -> Option<AdTensor<B>> {
        let of = tensor.node.id;
        let among = known.0.iter().find(|(known, _)| *known == of);
        let is_first = among.is_none();
        let passing = match among.cloned() {
            Some((_, passing)) => passing,
            None => {
                let is_needed = self.results.contains(&of) || !self.orders.insert((of, order));
                let passing = is_needed.then(SharedPassing::<B>::default);
                known.0.push((of, passing.clone()));
                passing
            }
        }?;
        let placeholder = self
            .placeholder
            .get_or_insert_with(|| tape::placeholder::<B>(&tensor.primitive));
        // Not the tensor, nor its value: the graph would hold itself.
        let target = tape::key::<B>(tensor, placeholder.clone());
        let node = tape::hook(vec![tensor.clone()], order, placeholder.clone(), {
            let passing = passing.clone();
            move |_, grads| {
                // The first operand is reached last.
                if !is_first {
                    return;
                }
                let mut passing = lock(&passing);
                add_waiting::<B>(of, mem::take(&mut passing.before), grads);
                if !passing.is_apart {
                    for node in &passing.nodes {
                        tape::forward(*node, &target, grads);
                    }
                }
                add_waiting::<B>(of, mem::take(&mut passing.after), grads);
            }
        });
        let id = node.node.id;
        lock(&passing).nodes.push(id);
        let nodes = self.nodes.entry(of).or_default();
        nodes.push(UseNode { id, passing });
        // Replaces the tensor, with the order that it claims.
        let value = tensor.primitive.clone();
        Some(tape::handle::<B>(&node, value, tensor.node.order))
    }
}

// With the feature `distributed`, burn-autodiff has more bounds on a backend.
#[cfg(all(test, not(feature = "distributed")))]
mod tests {
    use burn::{
        backend::{Autodiff, Flex},
        tensor::{TensorData, backend::AutodiffBackend, ops::FloatTensorOps},
    };

    use super::*;

    /// One added to it is lost in rounding, so a sum of three tells its order.
    const LARGE: f32 = 1e8;

    fn value(value: f32) -> FloatTensor<Flex> {
        Flex::float_from_data(TensorData::from([value]), &Default::default())
    }

    fn leaf() -> AdTensor<Flex> {
        tape::leaf::<Flex>(value(0.0))
    }

    /// The tensor as several operands of one operation.
    fn operands(
        uses: &mut Uses<Flex>,
        tensor: &AdTensor<Flex>,
        count: usize,
    ) -> Vec<AdTensor<Flex>> {
        let mut known = KnownOperands::default();
        let mut operand = || {
            let operand = uses.operand(tensor, 1, &mut known);
            operand.unwrap_or_else(|| tensor.clone())
        };
        (0..count).map(|_| operand()).collect()
    }

    /// An operation with these contributions to the gradients of its operands.
    fn operation(operands: Vec<AdTensor<Flex>>, contributions: &[f32]) -> AdTensor<Flex> {
        let ids = operands.iter().map(|operand| operand.node.id);
        let contributions: Vec<_> = ids.zip(contributions.iter().copied()).collect();
        tape::hook(operands, 1, value(0.0), move |_, grads| {
            for (id, contribution) in &contributions {
                grads.register::<Flex>(*id, value(*contribution));
            }
        })
    }

    /// The gradient of a leaf in a pass through operations; the last runs first.
    fn gradient(operations: Vec<AdTensor<Flex>>, leaf: &AdTensor<Flex>) -> Option<f32> {
        let root = tape::hook(operations, 2, value(0.0), |_, _| {});
        let grads = Autodiff::<Flex>::backward(root);
        let gradient = grads.get::<Flex>(leaf)?;
        let data = burn::tensor::try_read_sync(Flex::float_into_data(gradient));
        Some(data?.ok()?.to_vec::<f32>().ok()?[0])
    }

    #[test]
    fn the_second_use_of_one_order_has_a_node() {
        let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
        let mut has_node = |order| {
            let node = uses.operand(&leaf, order, &mut KnownOperands::default());
            node.is_some_and(|node| node.node.id != leaf.node.id)
        };
        assert!(!has_node(1) && !has_node(2));
        assert!(has_node(1) && has_node(2) && has_node(1));
    }

    #[test]
    fn each_use_of_a_result_has_a_node() {
        let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
        uses.add_result(leaf.node.id);
        let ids: HashSet<_> = (1..4)
            .map(|order| uses.operand(&leaf, order, &mut KnownOperands::default()))
            .map(|node| node.expect("it has one").node.id)
            .collect();
        assert_eq!(ids.len(), 3);
        assert!(!ids.contains(&leaf.node.id));
    }

    #[test]
    fn an_operation_that_takes_a_tensor_twice_uses_it_once() {
        let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
        let ids = operands(&mut uses, &leaf, 2);
        assert!(ids.iter().all(|operand| operand.node.id == leaf.node.id));
    }

    #[test]
    fn contributions_of_one_operation_add_up_in_the_order_of_its_operands() {
        let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
        uses.add_result(leaf.node.id);
        let operands = operands(&mut uses, &leaf, 3);
        let operation = operation(operands, &[LARGE, -LARGE, 1.0]);
        assert_eq!(gradient(vec![operation], &leaf), Some(1.0));
    }

    /// The use with a node runs first or second, and adds the contribution between the two.
    #[test]
    fn a_contribution_between_two_of_one_order() {
        for is_first in [true, false] {
            let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
            let [without, with] = [(); 2].map(|()| operands(&mut uses, &leaf, 1));
            let [node] = uses.of(leaf.node.id) else {
                panic!("one has a node");
            };
            let between = Arc::new(Mutex::new(Some(value(-LARGE))));
            let operations = match is_first {
                true => {
                    node.follow(between);
                    vec![operation(without, &[1.0]), operation(with, &[LARGE])]
                }
                false => {
                    node.precede(between);
                    vec![operation(with, &[1.0]), operation(without, &[LARGE])]
                }
            };
            assert_eq!(gradient(operations, &leaf), Some(1.0), "first: {is_first}");
        }
    }

    #[test]
    fn a_contribution_kept_apart_stays_under_its_node() {
        let (leaf, mut uses) = (leaf(), Uses::<Flex>::default());
        uses.add_result(leaf.node.id);
        let operand = operands(&mut uses, &leaf, 1);
        uses.of(leaf.node.id)[0].set_apart(true);
        let key = tape::key::<Flex>(&operand[0], value(0.0));
        let root = tape::hook(vec![operation(operand, &[1.0])], 2, value(0.0), |_, _| {});
        let grads = Autodiff::<Flex>::backward(root);
        assert!(grads.get::<Flex>(&leaf).is_none());
        assert!(grads.get::<Flex>(&key).is_some());
    }
}

//! The order in which plain Burn adds up the contributions to a gradient.
//!
//! Where a backward pass runs by subgraphs, contributions to the gradient of one tensor may come in
//! another order than from one tape, and a sum of three or more depends on it in its last bits. So
//! the pass is played through beforehand on what is known of the tape: which operation has
//! which operands, and at which order. Burn collects the operations it reaches from the loss, depth
//! first and the last operand first, and runs them by order, highest first.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use burn_autodiff::NodeId;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Consumer {
    /// An operation on the tape since the forward pass.
    Kept(NodeId),
    /// A recorded operation, by its sequence number.
    Replayable(u64),
}

/// A tensor that receives a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// A node on the tape.
    OnTape(NodeId),
    /// A result of a recorded operation: the sequence number, and the index of the result.
    Replayable(u64, usize),
}

impl Target {
    /// The operation that it is the result of, if that is known.
    fn made_by(self) -> Consumer {
        match self {
            Self::OnTape(id) => Consumer::Kept(id),
            Self::Replayable(sequence, _) => Consumer::Replayable(sequence),
        }
    }
}

/// Half of a subgraph: the operations that were kept in the forward pass, or the segment below it,
/// replayed. The kept half runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Half {
    Kept,
    Replayed,
}

/// A part of the tape that runs on its own: one half of the subgraph with this number.
pub(crate) type Unit = (u64, Half);

/// Sort key of units: last subgraph first, kept before replayed.
pub(crate) fn turn(unit: Unit) -> (Reverse<u64>, Half) {
    (Reverse(unit.0), unit.1)
}

/// An operation as the tape has it.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) consumer: Consumer,
    pub(crate) order: usize,
    /// The tracked operands.
    pub(crate) operands: Vec<(usize, Target)>,
}

/// One use of a tensor: by which operation, as which operand.
pub(crate) type Use = (Consumer, usize);

/// The known operations of a forward pass.
#[derive(Debug, Default)]
pub(crate) struct TapeGraph {
    edges: HashMap<Consumer, (Unit, Edge)>,
    /// Nodes that stand for other tensors in their subgraph.
    aliases: HashMap<NodeId, Target>,
}

/// The contributions to a gradient.
#[derive(Debug)]
pub(crate) struct Sum {
    /// The uses in plain Burn's order.
    pub(crate) uses: Vec<(Unit, Use)>,
    /// Whether that order results if each unit adds its own contributions.
    is_in_order: bool,
}

/// Result of playing the pass through.
#[derive(Debug)]
pub(crate) struct Played {
    graph: TapeGraph,
    reached: HashMap<Consumer, usize>,
    /// The contributions to each gradient.
    pub(crate) sums: HashMap<Target, Sum>,
    /// The results of each unit whose contributions must be put in order.
    apart: HashMap<Unit, Vec<Target>>,
    /// The use that each boundary leaf stands for.
    entries: HashMap<NodeId, Use>,
}

impl Played {
    /// Index of an operation in the order in which Burn reaches them.
    pub(crate) fn reached(&self, consumer: Consumer) -> usize {
        self.reached.get(&consumer).copied().unwrap_or(usize::MAX)
    }

    /// Whether the pass reaches a recorded operation that is not known: it was replayed before.
    pub(crate) fn reaches_replayed(&self) -> bool {
        let mut reached = self.reached.keys();
        reached.any(|consumer| {
            matches!(consumer, Consumer::Replayable(_)) && !self.graph.edges.contains_key(consumer)
        })
    }

    /// The order of an operation with operands, which was played.
    pub(crate) fn order(&self, consumer: Consumer) -> usize {
        let (_, edge) = &self.graph.edges[&consumer];
        edge.order
    }

    /// The tensor that a node stands for.
    pub(crate) fn resolve(&self, target: Target) -> Target {
        self.graph.resolve(target)
    }

    /// Whether the contributions to this gradient must be put in order.
    pub(crate) fn is_apart(&self, target: Target) -> bool {
        let sum = self.sums.get(&self.resolve(target));
        sum.is_some_and(|sum| !sum.is_in_order)
    }

    /// The results of a unit whose contributions must be put in order, with these.
    pub(crate) fn apart_in(&self, unit: Unit) -> impl Iterator<Item = (Target, &Sum)> {
        let targets = self.apart.get(&unit).into_iter().flatten();
        targets.map(move |target| (*target, &self.sums[target]))
    }

    /// Checks, in debug builds, that a contribution was played in the unit that it comes from.
    pub(crate) fn check(&self, target: Target, of: Use, unit: Unit) {
        debug_assert!(
            self.sums
                .get(&target)
                .is_some_and(|sum| sum.uses.contains(&(unit, of))),
            "{of:?} of {unit:?} contributes to {target:?}, and was not played"
        );
    }

    /// The use that a node of a subgraph stands for.
    pub(crate) fn entry(&self, node: NodeId) -> Option<Use> {
        self.entries.get(&node).copied()
    }
}

impl TapeGraph {
    pub(crate) fn add(&mut self, unit: Unit, edge: Edge) {
        self.edges.insert(edge.consumer, (unit, edge));
    }

    /// Notes that a node stands for another tensor.
    pub(crate) fn add_alias(&mut self, node: NodeId, target: Target) {
        self.aliases.insert(node, target);
    }

    fn resolve(&self, target: Target) -> Target {
        let mut target = target;
        while let Target::OnTape(id) = target
            && let Some(of) = self.aliases.get(&id)
        {
            target = *of;
        }
        target
    }

    /// Plays through the pass from `root`.
    pub(crate) fn play(self, root: Target) -> Played {
        let mut seen = HashSet::new();
        let mut tape: Vec<&(Unit, Edge)> = Vec::new();
        let mut waiting = vec![self.resolve(root)];
        let mut reached = HashMap::new();
        while let Some(target) = waiting.pop() {
            let consumer = target.made_by();
            if !seen.insert(consumer) {
                continue;
            }
            // This includes tensors of the tape outside of all subgraphs, whose operations are not
            // known: they are reached from here, in this order.
            reached.insert(consumer, reached.len());
            let Some(edge) = self.edges.get(&consumer) else {
                continue;
            };
            let operands = edge.1.operands.iter();
            waiting.extend(operands.map(|(_, operand)| self.resolve(*operand)));
            tape.push(edge);
        }
        tape.sort_by_key(|(_, edge)| Reverse(edge.order));
        let mut sums: HashMap<Target, Sum> = HashMap::new();
        let mut entries = HashMap::new();
        for (unit, edge) in tape {
            for (place, operand) in &edge.operands {
                let of = (edge.consumer, *place);
                let sum = sums.entry(self.resolve(*operand)).or_insert(Sum {
                    uses: Vec::new(),
                    is_in_order: true,
                });
                sum.uses.push((*unit, of));
                if let Target::OnTape(node) = operand {
                    entries.insert(*node, of);
                }
            }
        }
        let mut apart: HashMap<Unit, Vec<Target>> = HashMap::new();
        for (target, sum) in &mut sums {
            // A sum of two has no order.
            let is_sorted = sum.uses.is_sorted_by_key(|(unit, _)| turn(*unit));
            sum.is_in_order = is_sorted || sum.uses.len() <= 2;
            if !sum.is_in_order
                && let Some((unit, _)) = self.edges.get(&target.made_by())
            {
                apart.entry(*unit).or_default().push(*target);
            }
        }
        Played {
            graph: self,
            reached,
            sums,
            apart,
            entries,
        }
    }
}

impl Sum {
    /// Index of a use in the order of the sum.
    pub(crate) fn position(&self, of: Use) -> Option<usize> {
        self.uses.iter().position(|(_, known)| *known == of)
    }

    pub(crate) fn last_unit(&self) -> Unit {
        let units = self.uses.iter().map(|(unit, _)| *unit);
        units
            .max_by_key(|unit| turn(*unit))
            .expect("a sum has uses")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use burn::{
        backend::Flex,
        tensor::{Tensor, backend::AutodiffBackend},
    };
    use burn_autodiff::Autodiff;

    use super::*;
    use crate::tape;

    const TAPE: Unit = (0, Half::Kept);
    const UPPER: Unit = (2, Half::Kept);
    const LOWER: Unit = (1, Half::Replayed);

    /// Adds an operation with these operands. Returns its result.
    fn add(graph: &mut TapeGraph, unit: Unit, order: usize, operands: &[Target]) -> Target {
        let id = NodeId::new();
        let operands = operands.iter().copied().enumerate();
        let edge = Edge {
            consumer: Consumer::Kept(id),
            order,
            operands: operands.collect(),
        };
        graph.add(unit, edge);
        Target::OnTape(id)
    }

    fn leaf() -> Target {
        Target::OnTape(NodeId::new())
    }

    /// The operations that contribute to a gradient, in the order of the sum.
    fn contributors(played: &Played, target: Target) -> Vec<Consumer> {
        let uses = played.sums[&target].uses.iter();
        uses.map(|(_, (consumer, _))| *consumer).collect()
    }

    /// Tensors of the tape outside of all subgraphs, from which the pass goes on at the end.
    #[test]
    fn results_of_unknown_operations_are_reached_too() {
        let mut graph = TapeGraph::default();
        let outside = [0, 1, 2].map(|_| leaf());
        let low = add(&mut graph, TAPE, 1, &[outside[2]]);
        let root = add(&mut graph, TAPE, 2, &[low, outside[0], outside[1]]);
        let played = graph.play(root);
        let reached = outside.map(|tensor| played.reached(tensor.made_by()));
        assert!(reached[1] < reached[0] && reached[0] < reached[2]);
        assert_ne!(reached[2], usize::MAX);
        assert_eq!(played.reached(leaf().made_by()), usize::MAX);
    }

    /// Upper parts of the tape run before lower ones, whatever the orders of their operations.
    #[test]
    fn a_sum_of_three_across_parts_may_have_to_be_put_in_order() {
        let sum = |orders: &[(Unit, usize)]| {
            let mut graph = TapeGraph::default();
            let weight = leaf();
            let uses = orders.iter();
            let uses: Vec<_> = uses
                .map(|(unit, order)| add(&mut graph, *unit, *order, &[weight]))
                .collect();
            let root = add(&mut graph, UPPER, 99, &uses);
            graph.play(root).is_apart(weight)
        };
        assert!(!sum(&[(LOWER, 1), (UPPER, 2), (UPPER, 3)]), "as they come");
        assert!(!sum(&[(LOWER, 3), (UPPER, 1)]), "a + b is b + a");
        assert!(sum(&[(LOWER, 3), (UPPER, 1), (UPPER, 2)]));
        assert!(sum(&[(LOWER, 2), (UPPER, 1), (UPPER, 3)]));
    }

    #[test]
    fn a_part_has_the_results_that_it_makes() {
        let mut graph = TapeGraph::default();
        let result = add(&mut graph, LOWER, 1, &[leaf()]);
        let uses = [(LOWER, 4), (UPPER, 2), (UPPER, 3)];
        let uses = uses.map(|(unit, order)| add(&mut graph, unit, order, &[result]));
        let root = add(&mut graph, UPPER, 99, &uses);
        let played = graph.play(root);
        let made_in = |unit| played.apart_in(unit).map(|(target, _)| target);
        assert!(made_in(LOWER).eq([result]));
        assert_eq!(made_in(UPPER).count(), 0);
    }

    /// A node that stands for a tensor in its subgraph is that tensor.
    #[test]
    fn a_tensor_that_enters_a_subgraph_adds_up_outside() {
        let mut graph = TapeGraph::default();
        let weight = leaf();
        let boundary = NodeId::new();
        graph.add_alias(boundary, weight);
        let outer = NodeId::new();
        graph.add_alias(outer, Target::OnTape(boundary));
        let below = add(&mut graph, LOWER, 1, &[weight]);
        let above = add(&mut graph, UPPER, 2, &[Target::OnTape(outer)]);
        let root = add(&mut graph, UPPER, 3, &[below, above]);
        let played = graph.play(root);
        let expected = [above.made_by(), below.made_by()];
        assert_eq!(contributors(&played, weight), expected);
        assert_eq!(played.resolve(Target::OnTape(outer)), weight);
        assert_eq!(played.entry(outer), Some((above.made_by(), 0)));
        let sum = &played.sums[&weight];
        assert_eq!(sum.position((below.made_by(), 0)), Some(1));
        assert_eq!(sum.last_unit(), LOWER);
    }

    /// One operation that takes a tensor twice contributes twice.
    #[test]
    fn an_operand_taken_twice() {
        let mut graph = TapeGraph::default();
        let weight = leaf();
        let square = add(&mut graph, TAPE, 1, &[weight, weight]);
        let played = graph.play(square);
        let uses: Vec<_> = played.sums[&weight]
            .uses
            .iter()
            .map(|(_, of)| of.1)
            .collect();
        assert_eq!(uses, [0, 1]);
    }

    /// The order in which Burn's own tape runs nodes, in graphs of up to forty operations.
    #[test]
    fn burns_tape_runs_in_the_order_that_is_played() {
        for seed in 0..500_u64 {
            let mut state = seed;
            let mut below = |bound: usize| {
                // Knuth's linear congruential generator; its high bits are random enough.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % bound
            };
            let value = || {
                let ones = Tensor::<Flex, 1>::ones([1], &Default::default());
                ones.into_primitive().tensor()
            };
            let ran = Arc::new(Mutex::new(Vec::new()));
            let mut graph = TapeGraph::default();
            let leaves = 1 + below(3);
            let mut nodes: Vec<_> = (0..leaves).map(|_| tape::leaf::<Flex>(value())).collect();
            for _ in 0..3 + below(38) {
                let mut parents: Vec<_> = (0..1 + below(4)).map(|_| below(nodes.len())).collect();
                // Mostly the latest one as well: deep graphs, not only wide ones.
                if below(3) > 0 {
                    parents.push(nodes.len() - 1);
                }
                parents.sort_unstable();
                parents.dedup();
                let turn = below(parents.len());
                parents.rotate_left(turn);
                let parents: Vec<_> = parents.into_iter().map(|at| nodes[at].clone()).collect();
                let operands = parents.iter().map(|parent| Target::OnTape(parent.node.id));
                let operands = operands.enumerate().collect();
                let order = 1 + parents
                    .iter()
                    .map(|parent| parent.node.order)
                    .max()
                    .unwrap();
                let log = ran.clone();
                let run = move |id, _: &mut _| log.lock().unwrap().push(Consumer::Kept(id));
                let node = tape::hook::<Flex>(parents, order, value(), run);
                let consumer = Consumer::Kept(node.node.id);
                let edge = Edge {
                    consumer,
                    order,
                    operands,
                };
                graph.add(TAPE, edge);
                nodes.push(node);
            }
            let root = nodes.last().expect("there are some").clone();
            let played = graph.play(Target::OnTape(root.node.id));
            drop(<Autodiff<Flex> as AutodiffBackend>::backward(root));

            let ran = ran.lock().unwrap();
            let place = |consumer: &Consumer| ran.iter().position(|one| one == consumer);
            let mut consumers = HashSet::new();
            for target in played.sums.keys() {
                let contributors = contributors(&played, *target);
                let places: Vec<_> = contributors.iter().map(place).collect();
                assert!(places.iter().all(Option::is_some), "seed {seed}");
                assert!(places.is_sorted(), "seed {seed}: {places:?}");
                consumers.extend(contributors);
            }
            assert_eq!(consumers.len(), ran.len(), "seed {seed}");
        }
    }
}

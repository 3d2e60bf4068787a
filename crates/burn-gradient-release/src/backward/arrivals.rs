//! Contributions that wait to be added up in plain Burn's order.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::subgraph::order::{Consumer, Half, Played, Target, Unit, Use};
use crate::subgraph::uses::Waiting;
use crate::{
    subgraph::{Apart, Contribution, Late, Subgraph},
    tape::{self, AdTensor},
};

/// Contributions so far to gradients that have to be added up in an order.
pub(crate) struct Arrivals<B: Backend> {
    arrived: HashMap<Target, Arrived<B>>,
    /// The leaf of each result of a segment.
    results: HashMap<Target, AdTensor<B>>,
}

/// Contributions to one gradient.
struct Arrived<B: Backend> {
    node: AdTensor<B>,
    by_use: HashMap<Use, FloatTensor<B>>,
}

impl<B: Backend> Arrivals<B> {
    pub(crate) fn new() -> Self {
        Self {
            arrived: HashMap::new(),
            results: HashMap::new(),
        }
    }

    /// Notes the leaf that stands for a result of a segment.
    pub(crate) fn add_result(&mut self, target: Target, leaf: AdTensor<B>) {
        self.results.insert(target, leaf);
    }

    pub(crate) fn add(
        &mut self,
        target: Target,
        node: &AdTensor<B>,
        of: Use,
        gradient: FloatTensor<B>,
    ) {
        let arrived = self.arrived.entry(target).or_insert_with(|| Arrived {
            node: tape::key::<B>(node, node.primitive.clone()),
            by_use: HashMap::new(),
        });
        arrived.by_use.insert(of, gradient);
    }

    pub(crate) fn are_for(&self, target: Target) -> bool {
        self.arrived.contains_key(&target)
    }

    /// Adds up the gradients whose last contributions were to come from this part of the tape, but
    /// for those of a segment's results.
    pub(crate) fn add_up_complete(&mut self, played: &Played, unit: Unit, grads: &mut Gradients) {
        let is_complete = |target: &Target| {
            matches!(target, Target::OnTape(_))
                && played
                    .sums
                    .get(target)
                    .is_some_and(|sum| sum.last_unit() == unit)
        };
        let complete: Vec<_> = self.arrived.keys().copied().filter(is_complete).collect();
        for target in complete {
            self.add_up(played, target, grads);
        }
    }

    pub(crate) fn add_up_all(&mut self, played: &Played, grads: &mut Gradients) {
        let targets: Vec<_> = self.arrived.keys().copied().collect();
        for target in targets {
            self.add_up(played, target, grads);
        }
    }

    /// Adds up what has come.
    pub(crate) fn add_up(&mut self, played: &Played, target: Target, grads: &mut Gradients) {
        let (Some(mut arrived), Some(sum)) =
            (self.arrived.remove(&target), played.sums.get(&target))
        else {
            return;
        };
        for (_, of) in &sum.uses {
            if let Some(gradient) = arrived.by_use.remove(of) {
                grads.register::<B>(arrived.node.node.id, gradient);
            }
        }
        arrived.check_empty(target);
    }

    /// Adds up what comes before all contributions of the subgraph's own operations, which are still
    /// to run. Returns the rest; the nodes of their uses add of it what comes between two of one order.
    pub(crate) fn add_up_around(
        &mut self,
        played: &Played,
        subgraph: &Subgraph<B>,
        tensor: &AdTensor<B>,
        grads: &mut Gradients,
    ) -> Vec<Late<B>> {
        let id = tensor.node.id;
        let target = Target::OnTape(id);
        let (Some(mut arrived), Some(sum)) =
            (self.arrived.remove(&target), played.sums.get(&target))
        else {
            return Vec::new();
        };
        let own =
            |(unit, of): &(Unit, Use)| (*unit == (subgraph.number(), Half::Kept)).then_some(of.0);
        let mut late: Vec<Late<B>> = Vec::new();
        let mut before = None;
        let mut uses = sum.uses.iter();
        while let Some(of) = uses.next() {
            before = own(of).or(before);
            let Some(gradient) = arrived.by_use.remove(&of.1) else {
                continue;
            };
            let Some(before) = before else {
                grads.register::<B>(id, gradient);
                continue;
            };
            let order = played.order(before);
            let after = uses.clone().find_map(own);
            let after = after.filter(|after| played.order(*after) == order);
            let gradient = Arc::new(Mutex::new(Some(gradient)));
            if let Some(after) = after {
                put_between(played, subgraph, id, (before, after), &gradient);
            }
            match late.last_mut() {
                Some(last) if last.order == order => last.gradients.push(gradient),
                _ => late.push(Late {
                    seed: tape::handle::<B>(tensor, tensor.primitive.clone(), tensor.node.order),
                    order,
                    gradients: vec![gradient],
                }),
            }
        }
        arrived.check_empty(target);
        late
    }

    /// Contributions so far to those results of the subgraph's segment that have to be added up in an
    /// order.
    pub(crate) fn of_results(
        &mut self,
        played: &Played,
        subgraph: &Subgraph<B>,
        grads: &mut Gradients,
    ) -> Apart<B> {
        let unit = (subgraph.number(), Half::Replayed);
        let mut apart = Apart::new();
        for (target, sum) in &played.sums {
            if !played.is_apart(*target) || played.made_in(*target) != Some(unit) {
                continue;
            }
            let mut by_use = match self.arrived.remove(target) {
                Some(arrived) => arrived.by_use,
                None => HashMap::new(),
            };
            let mut of_loss = None;
            if let Some(leaf) = self.results.get(target) {
                let kept = of_nodes(played, subgraph, leaf, grads);
                let with_node: HashSet<_> = kept.iter().map(|(of, _)| *of).collect();
                by_use.extend(
                    kept.into_iter()
                        .filter_map(|(of, gradient)| Some((of, gradient?))),
                );
                // What is under the leaf itself comes from an operation of several nodes, or from the
                // loss, if that is the result.
                if let Some(gradient) = grads.remove::<B>(leaf) {
                    let kept = (subgraph.number(), Half::Kept);
                    let mut uses = sum.uses.iter();
                    match uses.find(|(of_unit, of)| *of_unit == kept && !with_node.contains(of)) {
                        Some((_, of)) => drop(by_use.insert(*of, gradient)),
                        None => of_loss = Some(Contribution::Arrived(gradient)),
                    }
                }
            }
            let contributions = sum.uses.iter().filter_map(|(of_unit, of)| {
                if *of_unit == unit {
                    return Some(Contribution::Own(*of));
                }
                by_use.remove(of).map(Contribution::Arrived)
            });
            let contributions: Vec<_> = of_loss.into_iter().chain(contributions).collect();
            if !contributions.is_empty() {
                apart.insert(*target, contributions);
            }
        }
        apart
    }
}

impl<B: Backend> Arrived<B> {
    fn check_empty(&self, target: Target) {
        debug_assert!(
            self.by_use.is_empty(),
            "a contribution to {target:?} was not played"
        );
    }
}

/// Has a gradient added between the contributions of two operations of one order, if one of these uses
/// has a node.
fn put_between<B: Backend>(
    played: &Played,
    subgraph: &Subgraph<B>,
    tensor: NodeId,
    (before, after): (Consumer, Consumer),
    gradient: &Waiting<B>,
) {
    subgraph.with_uses(|uses| {
        let by = |consumer: Consumer| {
            let mut nodes = uses.of(tensor).iter();
            nodes.find(|node| played.entry(node.id).is_some_and(|of| of.0 == consumer))
        };
        match (by(before), by(after)) {
            (Some(before), _) => before.follow(gradient.clone()),
            (None, Some(after)) => after.precede(gradient.clone()),
            (None, None) => {}
        }
    });
}

/// The contributions to a segment's result that stayed under the nodes of its uses, as far as these
/// ran.
fn of_nodes<B: Backend>(
    played: &Played,
    subgraph: &Subgraph<B>,
    leaf: &AdTensor<B>,
    grads: &mut Gradients,
) -> Vec<(Use, Option<FloatTensor<B>>)> {
    subgraph.with_uses(|uses| {
        let nodes = uses.of(leaf.node.id).iter();
        let contributions = nodes.filter_map(|node| {
            let of = played.entry(node.id)?;
            Some((of, tape::take(node.id, leaf, grads)))
        });
        contributions.collect()
    })
}

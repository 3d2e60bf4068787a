//! Contributions that wait to be added up in plain Burn's order.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::subgraph::order::{Consumer, Half, Played, Sum, Target, Unit, Use};
use crate::subgraph::uses::Waiting;
use crate::{
    subgraph::{Apart, Contribution, Late, Subgraph},
    tape::{self, AdTensor},
};

/// Contributions so far to gradients that must be added up in a fixed order.
#[derive(Default)]
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

    /// Adds up the gradients whose last contributions come from this part of the tape, except those
    /// of a segment's results.
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

    /// Adds up the contributions that come before all those of the subgraph's own operations, which
    /// are still to run. Returns the rest. Of these, the use nodes of the operations add the ones
    /// that come between two operations of one order.
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

    /// Contributions so far to the gradients of the segment's results that must be added up in a
    /// fixed order.
    pub(crate) fn of_results(
        &mut self,
        played: &Played,
        subgraph: &Subgraph<B>,
        grads: &mut Gradients,
    ) -> Apart<B> {
        let unit = (subgraph.number(), Half::Replayed);
        let mut apart = Apart::new();
        for (target, sum) in played.apart_in(unit) {
            let arrived = self.arrived.remove(&target);
            let mut by_use = arrived.map_or_else(HashMap::new, |arrived| arrived.by_use);
            let leaf = self.results.get(&target);
            let of_loss =
                leaf.and_then(|leaf| take_kept(played, subgraph, sum, leaf, grads, &mut by_use));
            let of_loss = of_loss.map(Contribution::Arrived);
            let contributions = sum.uses.iter().filter_map(|(of_unit, of)| {
                if *of_unit == unit {
                    return Some(Contribution::Own(*of));
                }
                by_use.remove(of).map(Contribution::Arrived)
            });
            let contributions: Vec<_> = of_loss.into_iter().chain(contributions).collect();
            if !contributions.is_empty() {
                apart.insert(target, contributions);
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

/// Lets a use node of one of two operations of one order add a gradient between their
/// contributions, if there is such a node.
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

/// Takes the contributions of kept operations to the gradient of a segment's result. Returns the
/// one that comes from none of them, if the result is the loss.
fn take_kept<B: Backend>(
    played: &Played,
    subgraph: &Subgraph<B>,
    sum: &Sum,
    leaf: &AdTensor<B>,
    grads: &mut Gradients,
    by_use: &mut HashMap<Use, FloatTensor<B>>,
) -> Option<FloatTensor<B>> {
    let mut with_node = HashSet::new();
    subgraph.with_uses(|uses| {
        for node in uses.of(leaf.node.id) {
            let Some(of) = played.entry(node.id) else {
                continue;
            };
            with_node.insert(of);
            if let Some(gradient) = tape::take(node.id, leaf, grads) {
                by_use.insert(of, gradient);
            }
        }
    });
    // The gradient under the leaf itself comes from an operation of several nodes, or from the
    // loss.
    let gradient = grads.remove::<B>(leaf)?;
    let kept = (subgraph.number(), Half::Kept);
    let mut uses = sum.uses.iter();
    match uses.find(|(of_unit, of)| *of_unit == kept && !with_node.contains(of)) {
        Some((_, of)) => {
            by_use.insert(*of, gradient);
            None
        }
        None => Some(gradient),
    }
}

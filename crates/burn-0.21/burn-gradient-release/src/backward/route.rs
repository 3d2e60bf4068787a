//! The path of a backward pass from subgraph to subgraph.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use burn::tensor::backend::Backend;
use burn_autodiff::{NodeId, grads::Gradients};

use crate::subgraph::order::{self, Consumer, Half, Played, TapeGraph, Target, Unit};
use crate::{
    backward::arrivals::Arrivals,
    subgraph::{Apart, Origins, Seeds, Spent, Subgraph, SubgraphConsumers},
    tape::consumers::{Consumers, When},
    tape::{self, AdTensor},
    util::progress::Recomputed,
};

/// The number of the tape outside of all subgraphs.
pub(crate) const HOME: u64 = 0;

/// State of a backward pass over several subgraphs.
pub(crate) struct Route<B: Backend> {
    /// Subgraphs by number.
    pub(crate) subgraphs: BTreeMap<u64, Arc<Subgraph<B>>>,
    /// All parameters that the pass can reach.
    pub(crate) parameters: Vec<Arc<Consumers<B>>>,
    /// The unit that uses each parameter last: the lowest subgraph, and its last half.
    last_use: HashMap<*const Consumers<B>, Unit>,
    /// Tensors whose gradients wait for their subgraph to run, by its number.
    waiting: HashMap<u64, Vec<Entered<B>>>,
    pub(crate) recomputed: Recomputed,
    pub(crate) played: Played,
    arrivals: Arrivals<B>,
    /// The unit that has run last.
    ran: Option<Unit>,
}

/// A tensor that has entered another subgraph.
type Entered<B> = (AdTensor<B>, Origins<B>);

impl<B: Backend> Route<B> {
    /// # Errors
    ///
    /// If an operation on the way was already replayed.
    pub(crate) fn new(last: Arc<Subgraph<B>>, root: NodeId) -> Result<Self, Spent> {
        let mut subgraphs = BTreeMap::new();
        let mut last_use: HashMap<_, Unit> = HashMap::new();
        let mut parameters: Vec<Arc<Consumers<B>>> = Vec::new();
        let mut graph = TapeGraph::default();
        let mut arrivals = Arrivals::default();
        let mut recomputed = Recomputed::default();
        let mut kept = HashSet::new();
        let mut note = |consumers: &Arc<Consumers<B>>, number: u64, half: Half| {
            let unit = last_use.entry(Arc::as_ptr(consumers)).or_insert_with(|| {
                parameters.push(consumers.clone());
                (number, half)
            });
            // A later half of the same subgraph, or a lower subgraph.
            if number < unit.0 || (number == unit.0 && half > unit.1) {
                *unit = (number, half);
            }
        };
        let mut waiting = vec![last];
        while let Some(subgraph) = waiting.pop() {
            let number = subgraph.number();
            if subgraphs.insert(number, subgraph.clone()).is_some() {
                continue;
            }
            subgraph.with_parameters(|parameters| {
                for consumers in parameters {
                    note(&consumers.home, number, Half::Kept);
                }
            });
            let mut below = Vec::new();
            subgraph.with_boundaries(|boundaries| {
                for boundary in boundaries {
                    below.push(boundary.origins.clone());
                    let target = Target::OnTape(boundary.target.node.id);
                    graph.add_alias(boundary.leaf.node.id, target);
                }
            });
            subgraph.with_uses(|uses| {
                for (of, node) in uses.nodes() {
                    graph.add_alias(node.id, Target::OnTape(of));
                }
            });
            for edge in subgraph.edges() {
                graph.add((number, Half::Kept), edge);
            }
            if let Some(segment) = subgraph.segment() {
                let inputs = segment.inputs();
                below.extend(inputs.origins);
                for consumers in &inputs.parameters {
                    note(consumers, number, Half::Replayed);
                }
                recomputed.segments += 1;
                recomputed.operations += inputs.edges.len();
                for (node, bytes) in inputs.kept {
                    if node.is_none_or(|node| kept.insert(node)) {
                        recomputed.kept_bytes += bytes;
                    }
                }
                for edge in inputs.edges {
                    graph.add((number, Half::Replayed), edge);
                }
                for (leaf, target) in inputs.results {
                    graph.add_alias(leaf.node.id, target);
                    arrivals.add_result(target, leaf);
                }
            }
            for origins in below {
                if let Some(subgraph) = origins.subgraph() {
                    waiting.push(subgraph.clone());
                    continue;
                }
                for consumers in origins
                    .parameters()
                    .iter()
                    .filter(|consumers| consumers.is_used())
                {
                    note(consumers, HOME, Half::Kept);
                }
            }
        }
        let played = graph.play(Target::OnTape(root));
        if played.reaches_replayed() {
            return Err(Spent);
        }
        Ok(Self {
            subgraphs,
            parameters,
            last_use,
            waiting: HashMap::new(),
            recomputed,
            played,
            arrivals,
            ran: None,
        })
    }

    /// Lets each parameter act in the unit that uses it last, and keeps contributions to a
    /// segment's results apart if they must be put in order.
    pub(crate) fn assign(&self, subgraph: &Subgraph<B>, half: Half) {
        let unit = (subgraph.number(), half);
        subgraph.with_uses(|uses| {
            for (of, node) in uses.nodes() {
                let target = self.played.resolve(Target::OnTape(of));
                let is_of_result = matches!(target, Target::Replayable(..));
                let is_known = self.played.entry(node.id).is_some();
                node.set_apart(is_of_result && is_known && self.played.is_apart(target));
            }
        });
        subgraph.with_parameters(|parameters| {
            for consumers in parameters {
                let is_last = self.last_use.get(&Arc::as_ptr(&consumers.home)) == Some(&unit);
                let target = Target::OnTape(consumers.home.node().node.id);
                let sum = self.played.sums.get(&self.played.resolve(target));
                // In a kept half, each use has its own contribution only.
                let has_all = match half {
                    Half::Kept => sum.is_some_and(|sum| sum.uses.len() == 1),
                    Half::Replayed => !self.played.is_apart(target),
                };
                let acts = is_last && has_all;
                let owner = consumers.home.weak_owner().filter(|_| acts);
                consumers.here.replace_owner(owner);
            }
        });
    }

    /// Prepares to run a part of the tape.
    pub(crate) fn begin(&self, subgraph: &Subgraph<B>, half: Half, grads: &mut Gradients) {
        self.assign(subgraph, half);
        subgraph.with_boundaries(|boundaries| {
            for boundary in boundaries.iter().filter(|_| half == Half::Replayed) {
                if !self
                    .played
                    .is_apart(Target::OnTape(boundary.target.node.id))
                {
                    tape::forward(boundary.target.node.id, &boundary.leaf, grads);
                }
            }
        });
    }

    /// Takes over the gradients that a part of the tape has left for the tensors that entered it.
    pub(crate) fn collect(&mut self, subgraph: &Subgraph<B>, half: Half, grads: &mut Gradients) {
        let unit = (subgraph.number(), half);
        self.check_turn(unit);
        subgraph.with_parameters(|parameters| {
            for consumers in parameters
                .iter()
                .filter(|consumers| consumers.here.is_reached())
            {
                consumers.home.mark_reached();
            }
        });
        subgraph.with_boundaries(|boundaries| {
            let mut boundaries: Vec<_> = boundaries.iter().collect();
            boundaries.sort_by_cached_key(|boundary| {
                let target = self.played.resolve(Target::OnTape(boundary.target.node.id));
                let sum = self.played.sums.get(&target);
                let of = self.played.entry(boundary.leaf.node.id);
                sum.zip(of).and_then(|(sum, of)| sum.position(of))
            });
            for boundary in boundaries {
                let target = self.played.resolve(Target::OnTape(boundary.target.node.id));
                if self.played.is_apart(target) {
                    let of = boundary
                        .of
                        .or_else(|| self.played.entry(boundary.leaf.node.id));
                    if let (Some(of), Some(gradient)) = (of, grads.remove::<B>(&boundary.leaf)) {
                        self.played.check(target, of, unit);
                        self.arrivals.add(target, &boundary.target, of, gradient);
                    }
                } else {
                    tape::forward(boundary.leaf.node.id, &boundary.target, grads);
                }
                if tape::is_leaf::<B>(&boundary.target) {
                    continue;
                }
                let number = boundary.origins.number();
                let waiting = self.waiting.entry(number).or_default();
                let id = boundary.target.node.id;
                if !waiting.iter().any(|(known, _)| known.node.id == id) {
                    waiting.push((boundary.target.clone(), boundary.origins.clone()));
                }
            }
        });
        self.arrivals.add_up_complete(&self.played, unit, grads);
        subgraph.with_parameters(|parameters| {
            for SubgraphConsumers { home, .. } in parameters {
                let is_last = self.last_use.get(&Arc::as_ptr(home)) == Some(&unit);
                if let Some(owner) = home.owner().filter(|_| is_last) {
                    owner.act(home.node().node.id, grads, When::Complete);
                }
            }
        });
    }

    /// Checks, in debug builds, that units run in the order in which they were played.
    fn check_turn(&mut self, unit: Unit) {
        let before = self.ran.replace(unit);
        debug_assert!(
            before.is_none_or(|before| order::turn(before) < order::turn(unit)),
            "{unit:?} ran after {before:?}, and was played before it"
        );
    }

    /// Contributions so far to the gradients of a segment's results that must be added up in a
    /// fixed order.
    pub(crate) fn apart(&mut self, subgraph: &Subgraph<B>, grads: &mut Gradients) -> Apart<B> {
        self.arrivals.of_results(&self.played, subgraph, grads)
    }

    /// Adds up the remaining contributions, at the end of the pass.
    pub(crate) fn add_up_all(&mut self, grads: &mut Gradients) {
        self.arrivals.add_up_all(&self.played, grads);
    }

    /// The tensors of a subgraph whose gradients are known.
    pub(crate) fn seeds(
        &mut self,
        number: u64,
        subgraph: Option<&Subgraph<B>>,
        grads: &mut Gradients,
    ) -> Option<Seeds<B>> {
        let waiting = self.waiting.remove(&number)?;
        let mut late = Vec::new();
        let has_arrived = waiting.iter().map(|(tensor, _)| {
            let target = Target::OnTape(tensor.node.id);
            self.arrivals.are_for(target) || grads.get::<B>(tensor).is_some()
        });
        let has_arrived: Vec<_> = has_arrived.collect();
        for (tensor, _) in &waiting {
            match subgraph {
                Some(subgraph) => {
                    let of_tensor =
                        self.arrivals
                            .add_up_around(&self.played, subgraph, tensor, grads);
                    late.extend(of_tensor);
                }
                None => {
                    let target = Target::OnTape(tensor.node.id);
                    self.arrivals.add_up(&self.played, target, grads);
                }
            }
        }
        let waiting = waiting.into_iter().zip(has_arrived);
        let mut origins = Origins::none();
        let seeds = waiting.filter(|(_, has_arrived)| *has_arrived);
        let mut tensors: Vec<_> = seeds
            .map(|((tensor, of), _)| {
                origins.join(&of);
                tensor
            })
            .collect();
        // Burn reaches the last parent first.
        tensors.sort_by_key(|tensor| {
            let id = tensor.node.id;
            Reverse((self.played.reached(Consumer::Kept(id)), Reverse(id.value)))
        });
        (!tensors.is_empty()).then_some(Seeds {
            tensors,
            origins,
            late,
        })
    }
}

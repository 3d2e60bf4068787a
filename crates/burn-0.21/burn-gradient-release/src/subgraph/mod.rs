//! Parts of a forward pass with a tape of their own, and the order in which plain Burn would add up
//! contributions from several of them.
//!
//! A *subgraph* is a part of the tape that runs backward on its own. Without recomputation the tape
//! has no subgraph.
//!
//! Inside a [scope](crate::tensor::scope) an operation runs untracked and is
//! [recorded](crate::tensor::record): its function and its operands, but not its value. Only what
//! cannot be computed again is kept by value: tensors from outside, random numbers, data. The
//! recorded operations between two cuts are a *segment*.
//!
//! A result that leaves its segment becomes a leaf of a new [`Subgraph`]. A backward pass runs the
//! subgraphs from the last to the first, one after the other: Burn's engine cannot run one backward
//! pass inside another. Once a subgraph has run, the gradients of the segment below are known, and
//! the segment is [replayed](crate::backward::replay) in a subgraph of its own.

pub(crate) mod order;
pub(crate) mod origins;
pub(crate) mod uses;

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use burn::tensor::{TensorMetadata, backend::Backend, ops::FloatTensor};
use burn_autodiff::{NodeId, grads::Gradients};

pub(crate) use self::origins::Origins;
use self::{
    order::{Edge, Played, Target, Use},
    uses::{KnownOperands, Uses, Waiting},
};
use crate::{
    slot::armed_set::ArmedSet,
    tape::consumers::Consumers,
    tape::mark,
    tape::{self, AdTensor},
    util::discard::discard,
    util::lock::{get_mut, lock},
};

/// A part of the tape that runs backward on its own.
pub(crate) struct Subgraph<B: Backend> {
    number: u64,
    /// The segment whose results the subgraph begins with.
    segment: Option<Arc<dyn Recording<B>>>,
    /// Whether a segment is replayed here.
    is_replay: bool,
    /// A single armed set: the parameters as they are used here.
    armed_sets: Arc<[Arc<ArmedSet<B>>]>,
    state: Mutex<State<B>>,
}

#[derive(Default)]
struct State<B: Backend> {
    boundaries: Vec<Boundary<B>>,
    parameters: Vec<SubgraphConsumers<B>>,
    uses: Uses<B>,
    /// The operations that are on the tape since the forward pass.
    edges: Vec<Edge>,
}

/// A tensor that enters a subgraph: a leaf there, whose gradient is passed on.
pub(crate) struct Boundary<B: Backend> {
    pub(crate) leaf: AdTensor<B>,
    /// The tensor outside, without its value.
    pub(crate) target: AdTensor<B>,
    pub(crate) origins: Origins<B>,
    /// The use that it is for; `None` for all uses in the subgraph.
    pub(crate) of: Option<Use>,
}

pub(crate) struct SubgraphConsumers<B: Backend> {
    /// Consumers of the parameter itself, outside of all subgraphs.
    pub(crate) home: Arc<Consumers<B>>,
    pub(crate) here: Arc<Consumers<B>>,
    _elsewhere: Arc<()>,
}

/// The recorded operations of a segment, as its subgraph sees them.
pub(crate) trait Recording<B: Backend>: Send + Sync {
    /// Learns that its forward pass is about to run backward. `is_last` says whether the backward
    /// pass begins here.
    fn learn(&self, is_last: bool);

    /// The tensors and parameters that the segment is computed from, as far as no backward pass has
    /// replayed it.
    fn inputs(&self) -> Inputs<B>;

    /// Puts the segment on the tape, in a subgraph of its own, as far as `grads` has gradients of
    /// its results; moves them there. Returns the tensors to go on from.
    ///
    /// `apart` has the contributions from elsewhere to the gradients that must be added up in a
    /// fixed order.
    fn replay(
        &self,
        subgraph: &Arc<Subgraph<B>>,
        grads: &mut Gradients,
        played: &Played,
        apart: Apart<B>,
    ) -> Option<Seeds<B>>;
}

/// The tensors and parameters that the operations of a segment are computed from.
#[derive(Default)]
pub(crate) struct Inputs<B: Backend> {
    pub(crate) origins: Vec<Origins<B>>,
    pub(crate) parameters: Vec<Arc<Consumers<B>>>,
    pub(crate) edges: Vec<Edge>,
    /// Sizes of the tensors kept for the segment, in bytes, with their nodes; masks have none.
    pub(crate) kept: Vec<(Option<NodeId>, u64)>,
    /// The results, by the leaf that stands for each.
    pub(crate) results: Vec<(AdTensor<B>, Target)>,
}

/// Contributions that must be added up in a fixed order, by target.
pub(crate) type Apart<B> = HashMap<Target, Vec<Contribution<B>>>;

pub(crate) enum Contribution<B: Backend> {
    /// A gradient from outside of the segment.
    Arrived(FloatTensor<B>),
    /// The gradient of this use, which the segment itself computes.
    Own(Use),
}

/// Recorded operations that a pass needs were replayed, and dropped.
#[derive(Debug)]
pub(crate) struct Spent;

/// Tensors of one subgraph whose gradients are known.
pub(crate) struct Seeds<B: Backend> {
    pub(crate) tensors: Vec<AdTensor<B>>,
    pub(crate) origins: Origins<B>,
    pub(crate) late: Vec<Late<B>>,
}

/// Gradients that are added to that of a seed only after a contribution of the subgraph itself,
/// unless one of its uses has added them by then.
pub(crate) struct Late<B: Backend> {
    pub(crate) seed: AdTensor<B>,
    /// The order of the operation that they come after.
    pub(crate) order: usize,
    pub(crate) gradients: Vec<Waiting<B>>,
}

/// A number for a segment that begins now.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<B: Backend> Subgraph<B> {
    /// A subgraph that begins with the results of a segment.
    pub(crate) fn above(segment: Arc<dyn Recording<B>>, number: u64) -> Arc<Self> {
        Self::new(number, Some(segment), false)
    }

    /// A subgraph of activations that are kept.
    pub(crate) fn kept(number: u64) -> Arc<Self> {
        Self::new(number, None, false)
    }

    /// A subgraph in which a segment is replayed.
    pub(crate) fn replay(number: u64) -> Arc<Self> {
        Self::new(number, None, true)
    }

    fn new(number: u64, segment: Option<Arc<dyn Recording<B>>>, is_replay: bool) -> Arc<Self> {
        Arc::new(Self {
            number,
            segment,
            is_replay,
            armed_sets: Arc::new([Arc::new(ArmedSet::default())]),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        lock(&self.state)
    }

    /// A tensor depends on subgraphs of lower numbers only.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn segment(&self) -> Option<&Arc<dyn Recording<B>>> {
        self.segment.as_ref()
    }

    /// Brings a tensor into the subgraph.
    ///
    /// This includes leaves: Burn merges the graphs of two subgraphs that share a node, and would
    /// then free nodes that one of them has not run yet.
    pub(crate) fn enter(
        self: &Arc<Self>,
        tensor: AdTensor<B>,
        origins: Origins<B>,
        of: Option<Use>,
    ) -> (AdTensor<B>, Origins<B>) {
        if !tensor.is_tracked() {
            return (tensor, Origins::none());
        }
        if let Some(subgraph) = origins.subgraph()
            && Arc::ptr_eq(subgraph, self)
        {
            return (tensor, origins);
        }
        let leaf = self.boundary(&tensor, origins, of);
        let tensor = tape::handle::<B>(&leaf, tensor.primitive, tensor.node.order);
        (tensor, Origins::within(self.clone()))
    }

    /// Brings a parameter into the subgraph. Returns its leaf here, its consumers and their
    /// origins.
    pub(crate) fn enter_parameter(
        self: &Arc<Self>,
        leaf: AdTensor<B>,
        home: &Arc<Consumers<B>>,
        of: Option<Use>,
    ) -> (AdTensor<B>, Arc<Consumers<B>>, Origins<B>) {
        let boundary = self.boundary(&leaf, Origins::none(), of);
        let mut state = self.state();
        let known = state.parameters.iter();
        let is_shared = self.is_shared(of);
        let known = known
            .rev()
            .find(|consumers| is_shared && Arc::ptr_eq(&consumers.home, home));
        let here = known
            .map(|consumers| consumers.here.clone())
            .unwrap_or_else(|| {
                let key = tape::key::<B>(&boundary, boundary.primitive.clone());
                let here = Arc::new(Consumers::new(key));
                // A single use among several never makes the gradient complete.
                here.replace_owner(home.weak_owner().filter(|_| of.is_none()));
                self.armed_sets[0].add_parameter(&here);
                state.parameters.push(SubgraphConsumers {
                    home: home.clone(),
                    here: here.clone(),
                    _elsewhere: home.elsewhere(),
                });
                here
            });
        let origins = Origins::of_all(self.armed_sets.clone(), self.clone());
        let leaf = tape::handle::<B>(&boundary, leaf.primitive, leaf.node.order);
        (leaf, here, origins)
    }

    /// Whether the uses of a tensor share one leaf here, and add up there.
    ///
    /// They do not during the forward pass: the order in which they add up is not known yet.
    fn is_shared(&self, of: Option<Use>) -> bool {
        self.is_replay && of.is_none()
    }

    /// The leaf that stands for a tensor in this subgraph.
    fn boundary(&self, tensor: &AdTensor<B>, origins: Origins<B>, of: Option<Use>) -> AdTensor<B> {
        mark::check_entering::<B>(tensor);
        let mut state = self.state();
        let id = tensor.node.id;
        let is_shared = self.is_shared(of);
        let known = state.boundaries.iter();
        let known = known
            .rev()
            .find(|boundary| is_shared && boundary.of.is_none() && boundary.target.node.id == id);
        if let Some(known) = known {
            return known.leaf.clone();
        }
        let placeholder = match state.boundaries.first() {
            Some(known) if known.leaf.dtype() == tensor.dtype() => known.leaf.primitive.clone(),
            _ => tape::placeholder::<B>(&tensor.primitive),
        };
        let leaf = tape::leaf::<B>(placeholder.clone());
        state.boundaries.push(Boundary {
            leaf: leaf.clone(),
            target: tape::handle::<B>(tensor, placeholder, tensor.node.order),
            origins,
            of,
        });
        leaf
    }

    /// A tensor of the subgraph as the operand of an operation, which is one node of this order:
    /// under a use node, if it needs one.
    pub(crate) fn operand(
        &self,
        tensor: AdTensor<B>,
        order: usize,
        known: &mut KnownOperands<B>,
    ) -> AdTensor<B> {
        // A replayed segment was played through before: its uses have the nodes that they need.
        if self.is_replay {
            return tensor;
        }
        let node = self.state().uses.operand(&tensor, order, known);
        node.unwrap_or(tensor)
    }

    /// The uses that have a node.
    pub(crate) fn with_uses<R>(&self, look: impl FnOnce(&Uses<B>) -> R) -> R {
        look(&self.state().uses)
    }

    /// Notes the leaf of a result of the segment.
    pub(crate) fn add_result(&self, leaf: NodeId) {
        self.state().uses.add_result(leaf);
    }

    /// Notes an operation in the subgraph.
    pub(crate) fn note(&self, edge: Edge) {
        // A replayed operation is known from its recording.
        if !self.is_replay {
            self.state().edges.push(edge);
        }
    }

    /// The operations noted. They stay for the backward pass of another loss.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        self.state().edges.clone()
    }

    /// The uses of parameters in the subgraph.
    pub(crate) fn with_parameters<R>(&self, look: impl FnOnce(&[SubgraphConsumers<B>]) -> R) -> R {
        look(&self.state().parameters)
    }

    pub(crate) fn with_boundaries<R>(&self, look: impl FnOnce(&[Boundary<B>]) -> R) -> R {
        look(&self.state().boundaries)
    }
}

impl<B: Backend> Drop for Subgraph<B> {
    fn drop(&mut self) {
        // Boundaries hold the subgraphs below.
        discard(mem::take(&mut get_mut(&mut self.state).boundaries));
    }
}

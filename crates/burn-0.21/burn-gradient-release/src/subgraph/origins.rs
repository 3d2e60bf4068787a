//! Where a tensor on the tape comes from: the armed parameters it depends on, and the subgraph of
//! the tape it is in.
//!
//! A backward pass starts from a loss, and burn-autodiff does not tell which nodes are below it. So
//! each result carries its origins.

use std::sync::Arc;

use burn::tensor::backend::Backend;

use crate::{
    slot::armed_set::{ArmedSet, Replay},
    subgraph::Subgraph,
    tape::consumers::Consumers,
};

/// The armed parameters that a tensor depends on, and the subgraph that it is in.
#[derive(Clone)]
pub(crate) struct Origins<B: Backend> {
    armed_sets: Option<Arc<[Arc<ArmedSet<B>>]>>,
    subgraph: Option<Arc<Subgraph<B>>>,
    /// Whether the tensor is a random mask of zeros and ones.
    is_mask: bool,
}

impl<B: Backend> Origins<B> {
    /// The origins of a tensor that depends on no parameter and is in no subgraph.
    pub(crate) fn none() -> Self {
        Self {
            armed_sets: None,
            subgraph: None,
            is_mask: false,
        }
    }

    /// The origins of a random mask of zeros and ones.
    pub(crate) fn mask() -> Self {
        Self {
            is_mask: true,
            ..Self::none()
        }
    }

    /// The origins of a parameter in this armed set.
    pub(crate) fn of(armed_set: Arc<ArmedSet<B>>) -> Self {
        Self {
            armed_sets: Some(Arc::new([armed_set])),
            ..Self::none()
        }
    }

    /// The origins of a tensor that enters a subgraph.
    pub(crate) fn within(subgraph: Arc<Subgraph<B>>) -> Self {
        Self {
            subgraph: Some(subgraph),
            ..Self::none()
        }
    }

    /// The origins of a parameter that enters a subgraph, where its armed sets are these.
    pub(crate) fn of_all(armed_sets: Arc<[Arc<ArmedSet<B>>]>, subgraph: Arc<Subgraph<B>>) -> Self {
        Self {
            armed_sets: Some(armed_sets),
            ..Self::within(subgraph)
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.armed_sets.is_none() && self.subgraph.is_none()
    }

    pub(crate) fn is_mask(&self) -> bool {
        self.is_mask
    }

    pub(crate) fn subgraph(&self) -> Option<&Arc<Subgraph<B>>> {
        self.subgraph.as_ref()
    }

    /// The number of the subgraph; 0 for the tape outside of all subgraphs.
    pub(crate) fn number(&self) -> u64 {
        self.subgraph
            .as_ref()
            .map_or(0, |subgraph| subgraph.number())
    }

    fn armed_sets(&self) -> &[Arc<ArmedSet<B>>] {
        self.armed_sets.as_deref().unwrap_or_default()
    }

    /// Adds the origins of another operand. Of two subgraphs, the later one is kept.
    pub(crate) fn join(&mut self, other: &Self) {
        if other.number() > self.number() {
            self.subgraph.clone_from(&other.subgraph);
        }
        let (mine, theirs) = match (&self.armed_sets, &other.armed_sets) {
            (_, None) => return,
            (None, Some(_)) => return self.armed_sets.clone_from(&other.armed_sets),
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => return,
            (Some(mine), Some(theirs)) => (mine, theirs),
        };
        let is_in = |sets: &[Arc<ArmedSet<B>>], set: &Arc<ArmedSet<B>>| {
            sets.iter().any(|known| Arc::ptr_eq(known, set))
        };
        if theirs.iter().all(|set| is_in(mine, set)) {
            return;
        }
        if mine.iter().all(|set| is_in(theirs, set)) {
            return self.armed_sets.clone_from(&other.armed_sets);
        }
        let new = theirs.iter().filter(|set| !is_in(mine, set));
        self.armed_sets = Some(mine.iter().chain(new).cloned().collect());
    }

    pub(crate) fn add_derived(&self, derived: &Arc<impl Replay<B> + 'static>) {
        let derived: Arc<dyn Replay<B>> = derived.clone();
        for set in self.armed_sets() {
            set.add_derived(&derived);
        }
    }

    /// The consumers of each parameter that the tensor may depend on.
    pub(crate) fn parameters(&self) -> Vec<Arc<Consumers<B>>> {
        let parameters = self.armed_sets().iter().map(|set| set.parameters());
        parameters.collect::<Vec<_>>().concat()
    }

    /// The tensors derived from these parameters that are still on the tape, operands first.
    pub(crate) fn derived(&self) -> Vec<Arc<dyn Replay<B>>> {
        let derived = self.armed_sets().iter().map(|set| set.derived());
        let mut derived = derived.collect::<Vec<_>>().concat();
        derived.sort_by_key(|derived| derived.index());
        derived.dedup_by_key(|derived| derived.index());
        derived
    }
}

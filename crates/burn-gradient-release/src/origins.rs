//! Where a tensor on the tape comes from: the armed parameters it depends on, and the region of the
//! tape it is in.
//!
//! A backward pass starts from a loss, and burn-autodiff does not tell what is below it. So each
//! result carries its origins along.
//!
//! A *region* is a part of the tape that runs backward on its own. The tape as it is without
//! recomputation has no region. A slice of recomputed activations ends a region, and what is
//! computed from its results is in the next: by the time backward has come through a region, the
//! gradients of the slice below are there, and the slice can be replayed. Regions are numbered so
//! that a tensor of one depends on regions of lower numbers only.

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

use crate::{
    discard::discard,
    group::{Group, Replay},
    mark,
    recompute::order::{Played, Target, Use, Wire},
    tape::{self, AdTensor},
    uses::{Uses, lock},
};

/// What a tensor on the tape depends on.
pub(crate) struct Origins<B: Backend> {
    groups: Option<Arc<[Arc<Group<B>>]>>,
    region: Option<Arc<Region<B>>>,
    /// Whether the tensor is a random mask of zeros and ones.
    is_mask: bool,
}

impl<B: Backend> Origins<B> {
    pub(crate) fn none() -> Self {
        Self {
            groups: None,
            region: None,
            is_mask: false,
        }
    }

    /// Of a random mask of zeros and ones.
    pub(crate) fn mask() -> Self {
        Self {
            is_mask: true,
            ..Self::none()
        }
    }

    pub(crate) fn of(group: Arc<Group<B>>) -> Self {
        Self {
            groups: Some(Arc::new([group])),
            ..Self::none()
        }
    }

    /// Of a tensor that enters a region.
    pub(crate) fn within(region: Arc<Region<B>>) -> Self {
        Self {
            region: Some(region),
            ..Self::none()
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.groups.is_none() && self.region.is_none()
    }

    pub(crate) fn is_mask(&self) -> bool {
        self.is_mask
    }

    pub(crate) fn region(&self) -> Option<&Arc<Region<B>>> {
        self.region.as_ref()
    }

    /// The number of the region; 0 for the tape outside of all.
    pub(crate) fn number(&self) -> u64 {
        number(&self.region)
    }

    fn groups(&self) -> &[Arc<Group<B>>] {
        self.groups.as_deref().unwrap_or_default()
    }

    /// Adds the origins of another operand.
    pub(crate) fn join(&mut self, other: &Self) {
        if number(&other.region) > number(&self.region) {
            self.region.clone_from(&other.region);
        }
        let (mine, theirs) = match (&self.groups, &other.groups) {
            (_, None) => return,
            (None, Some(_)) => return self.groups.clone_from(&other.groups),
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => return,
            (Some(mine), Some(theirs)) => (mine, theirs),
        };
        let is_in = |groups: &[Arc<Group<B>>], group: &Arc<Group<B>>| {
            groups.iter().any(|known| Arc::ptr_eq(known, group))
        };
        if theirs.iter().all(|group| is_in(mine, group)) {
            return;
        }
        if mine.iter().all(|group| is_in(theirs, group)) {
            return self.groups.clone_from(&other.groups);
        }
        let new = theirs.iter().filter(|group| !is_in(mine, group));
        self.groups = Some(mine.iter().chain(new).cloned().collect());
    }

    pub(crate) fn add_derived(&self, derived: &Arc<impl Replay<B> + 'static>) {
        let derived: Arc<dyn Replay<B>> = derived.clone();
        for group in self.groups() {
            group.add_derived(&derived);
        }
    }

    /// The uses of the parameters.
    pub(crate) fn parameters(&self) -> Vec<Arc<Uses<B>>> {
        let parameters = self.groups().iter().map(|group| group.parameters());
        parameters.collect::<Vec<_>>().concat()
    }

    /// What was derived from the parameters and is still on the tape, operands first.
    pub(crate) fn derived(&self) -> Vec<Arc<dyn Replay<B>>> {
        let derived = self.groups().iter().map(|group| group.derived());
        let mut derived = derived.collect::<Vec<_>>().concat();
        derived.sort_by_key(|derived| derived.index());
        derived.dedup_by_key(|derived| derived.index());
        derived
    }
}

/// The number of a region; 0 for the tape outside of all.
fn number<B: Backend>(region: &Option<Arc<Region<B>>>) -> u64 {
    region.as_ref().map_or(0, |region| region.number)
}

/// A part of the tape that runs backward on its own.
pub(crate) struct Region<B: Backend> {
    number: u64,
    /// The slice whose results the region begins with.
    slice: Option<Arc<dyn Recording<B>>>,
    /// Whether a slice is replayed here.
    is_replay: bool,
    /// One group: the parameters as they are used here.
    groups: Arc<[Arc<Group<B>>]>,
    state: Mutex<State<B>>,
}

struct State<B: Backend> {
    portals: Vec<Portal<B>>,
    parameters: Vec<RegionUses<B>>,
    /// The operations, as far as they are on the tape since the forward pass.
    wires: Vec<Wire>,
}

/// A tensor that enters a region: a leaf there, which hands its gradient on.
pub(crate) struct Portal<B: Backend> {
    pub(crate) leaf: AdTensor<B>,
    /// The tensor outside, without its value.
    pub(crate) target: AdTensor<B>,
    pub(crate) origins: Origins<B>,
    /// The one use it is for; all in the region, if `None`.
    pub(crate) of: Option<Use>,
}

/// The uses of a parameter in a region.
pub(crate) struct RegionUses<B: Backend> {
    /// Those of the parameter itself: outside of all regions.
    pub(crate) home: Arc<Uses<B>>,
    pub(crate) here: Arc<Uses<B>>,
    _elsewhere: Arc<()>,
}

/// The recorded operations of a slice that others have taken results of.
pub(crate) trait Recording<B: Backend>: Send + Sync {
    /// The forward pass that it is part of is about to run backward. `is_last` tells if that begins here.
    fn learn(&self, is_last: bool);

    /// What it is computed from.
    ///
    /// # Errors
    ///
    /// If a backward pass has replayed it already.
    fn inputs(&self) -> Result<Inputs<B>, Spent>;

    /// Puts it on the tape, in a region of its own, as far as the gradients of its results are in
    /// `grads`; moves them there. Returns where to go on from.
    ///
    /// `apart` has what has come from elsewhere for the gradients that are to be added up in an order.
    fn replay(
        &self,
        region: &Arc<Region<B>>,
        grads: &mut Gradients,
        played: &Played,
        apart: Apart<B>,
    ) -> Option<Seeds<B>>;
}

/// What the operations of a slice are computed from.
pub(crate) struct Inputs<B: Backend> {
    pub(crate) origins: Vec<Origins<B>>,
    pub(crate) parameters: Vec<Arc<Uses<B>>>,
    pub(crate) wires: Vec<Wire>,
    /// The bytes that are kept for it, by the node of the tensor; of none, for masks.
    pub(crate) kept: Vec<(Option<NodeId>, u64)>,
    /// The results, by the leaf that stands for each.
    pub(crate) results: Vec<(AdTensor<B>, Target)>,
}

/// The parts of a gradient that has to be added up in an order, by target.
pub(crate) type Apart<B> = HashMap<Target, Vec<Contribution<B>>>;

/// One part of a gradient.
pub(crate) enum Contribution<B: Backend> {
    /// From elsewhere.
    Arrived(FloatTensor<B>),
    /// From this use in the slice itself.
    Own(Use),
}

/// The recorded operations were replayed, and are gone.
#[derive(Debug)]
pub(crate) struct Spent;

/// Tensors of one region whose gradients are there.
pub(crate) struct Seeds<B: Backend> {
    pub(crate) tensors: Vec<AdTensor<B>>,
    pub(crate) origins: Origins<B>,
}

/// A number for a slice that begins now.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<B: Backend> Region<B> {
    /// A region that begins with the results of a slice.
    pub(crate) fn above(slice: Arc<dyn Recording<B>>, number: u64) -> Arc<Self> {
        Self::new(number, Some(slice), false)
    }

    /// A region of activations that are kept.
    pub(crate) fn kept(number: u64) -> Arc<Self> {
        Self::new(number, None, false)
    }

    /// A region that a slice is replayed in.
    pub(crate) fn replay(number: u64) -> Arc<Self> {
        Self::new(number, None, true)
    }

    fn new(number: u64, slice: Option<Arc<dyn Recording<B>>>, is_replay: bool) -> Arc<Self> {
        Arc::new(Self {
            number,
            slice,
            is_replay,
            groups: Arc::new([Arc::new(Group::new())]),
            state: Mutex::new(State {
                portals: Vec::new(),
                parameters: Vec::new(),
                wires: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        lock(&self.state)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn slice(&self) -> Option<&Arc<dyn Recording<B>>> {
        self.slice.as_ref()
    }

    /// Brings a tensor into the region.
    ///
    /// Leaves, too: where two regions share a node, Burn makes one graph of them, whose bookkeeping
    /// would free what one region has not run yet.
    pub(crate) fn enter(
        self: &Arc<Self>,
        tensor: AdTensor<B>,
        origins: Origins<B>,
        of: Option<Use>,
    ) -> (AdTensor<B>, Origins<B>) {
        if !tensor.is_tracked() {
            return (tensor, Origins::none());
        }
        if let Some(region) = &origins.region
            && Arc::ptr_eq(region, self)
        {
            return (tensor, origins);
        }
        let leaf = self.portal(&tensor, origins, of);
        let tensor = tape::handle::<B>(&leaf, tensor.primitive, tensor.node.order);
        (tensor, Origins::within(self.clone()))
    }

    /// Brings a parameter into the region: returns its leaf here, its uses and their origins.
    pub(crate) fn enter_parameter(
        self: &Arc<Self>,
        leaf: AdTensor<B>,
        home: &Arc<Uses<B>>,
        of: Option<Use>,
    ) -> (AdTensor<B>, Arc<Uses<B>>, Origins<B>) {
        let portal = self.portal(&leaf, Origins::none(), of);
        let mut state = self.state();
        let known = state.parameters.iter();
        let is_shared = self.is_shared(of);
        let known = known
            .rev()
            .find(|uses| is_shared && Arc::ptr_eq(&uses.home, home));
        let here = known.map(|uses| uses.here.clone()).unwrap_or_else(|| {
            let key = tape::key::<B>(&portal, portal.primitive.clone());
            let here = Arc::new(Uses::new(key));
            // A single use among several never makes the gradient complete.
            here.replace_owner(home.weak_owner().filter(|_| of.is_none()));
            self.groups[0].add_parameter(&here);
            state.parameters.push(RegionUses {
                home: home.clone(),
                here: here.clone(),
                _elsewhere: home.elsewhere(),
            });
            here
        });
        let origins = Origins {
            groups: Some(self.groups.clone()),
            ..Origins::within(self.clone())
        };
        let leaf = tape::handle::<B>(&portal, leaf.primitive, leaf.node.order);
        (leaf, here, origins)
    }

    /// Whether uses of a tensor share what stands for it here, and add up there.
    ///
    /// Not during the forward pass: in which order they are to be added up is not known yet.
    fn is_shared(&self, of: Option<Use>) -> bool {
        self.is_replay && of.is_none()
    }

    /// The leaf that stands for a tensor in this region.
    fn portal(&self, tensor: &AdTensor<B>, origins: Origins<B>, of: Option<Use>) -> AdTensor<B> {
        mark::check_entering::<B>(tensor);
        let mut state = self.state();
        let id = tensor.node.id;
        let is_shared = self.is_shared(of);
        let known = state.portals.iter();
        let known = known
            .rev()
            .find(|portal| is_shared && portal.of.is_none() && portal.target.node.id == id);
        if let Some(known) = known {
            return known.leaf.clone();
        }
        let placeholder = match state.portals.first() {
            Some(known) if known.leaf.dtype() == tensor.dtype() => known.leaf.primitive.clone(),
            _ => tape::placeholder::<B>(&tensor.primitive),
        };
        let leaf = tape::leaf::<B>(placeholder.clone());
        state.portals.push(Portal {
            leaf: leaf.clone(),
            target: tape::handle::<B>(tensor, placeholder, tensor.node.order),
            origins,
            of,
        });
        leaf
    }

    /// Notes an operation in the region.
    pub(crate) fn note(&self, wire: Wire) {
        // What is replayed was played through as what it was recorded as.
        if !self.is_replay {
            self.state().wires.push(wire);
        }
    }

    /// The operations noted.
    pub(crate) fn take_wires(&self) -> Vec<Wire> {
        mem::take(&mut self.state().wires)
    }

    /// The uses of parameters in the region.
    pub(crate) fn with_parameters<R>(&self, look: impl FnOnce(&[RegionUses<B>]) -> R) -> R {
        look(&self.state().parameters)
    }

    pub(crate) fn with_portals<R>(&self, look: impl FnOnce(&[Portal<B>]) -> R) -> R {
        look(&self.state().portals)
    }
}

impl<B: Backend> Drop for Region<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(|error| error.into_inner());
        // They hold the regions below.
        discard(mem::take(&mut state.portals));
    }
}

impl<B: Backend> Clone for Origins<B> {
    fn clone(&self) -> Self {
        Self {
            groups: self.groups.clone(),
            region: self.region.clone(),
            is_mask: self.is_mask,
        }
    }
}

impl<B: Backend> std::fmt::Debug for Origins<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origins")
            .field("groups", &self.groups().len())
            .field("region", &number(&self.region))
            .finish()
    }
}

//! The float tensor of the decorated backend: an autodiff tensor, or something that stands for an
//! armed parameter.

use std::sync::{Arc, Weak};

use burn::tensor::{
    DType, Shape, TensorMetadata,
    backend::{AutodiffBackend, Backend, BackendTypes},
};
use burn_autodiff::{Autodiff, NodeId};

use crate::{
    derived::Derived,
    slot::{Fate, Slot},
};

/// The tensor of `burn-autodiff`. Its type cannot be named there, but its fields are public, and
/// it does not depend on the checkpointing strategy.
pub(crate) type AdTensor<B> = <Autodiff<B> as BackendTypes>::FloatTensorPrimitive;

/// Float tensor primitive of [`GradientRelease`](crate::GradientRelease).
///
/// As long as nothing is armed it is a thin wrapper around the tensor of `burn-autodiff`.
#[derive(Clone, Debug)]
pub struct ReleaseTensor<B: Backend>(pub(crate) Repr<B>);

#[derive(Debug)]
pub(crate) enum Repr<B: Backend> {
    /// An ordinary autodiff tensor.
    Plain(AdTensor<B>),
    /// The one owner of an armed parameter: its value can be replaced during backward.
    Live(Live<B>),
    /// The value of an armed parameter at the moment it was read.
    Snapshot(Snapshot<B>),
    /// A function of armed parameters alone, put on the tape when it meets an activation.
    Derived(Derived<B>),
}

/// Owner of a [`Slot`]. Not `Clone`: a copy would either move with the original or hold its old
/// buffer back, so copies are [`Snapshot`]s.
#[derive(Debug)]
pub(crate) struct Live<B: Backend> {
    slot: Arc<Slot<B>>,
    /// Dropped with the owner, which tells the slot that a new value would have nowhere to go.
    _presence: Arc<()>,
}

/// A value read from a [`Slot`], with the leaf it had then.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<B: Backend> {
    pub(crate) leaf: AdTensor<B>,
    pub(crate) slot: Weak<Slot<B>>,
    /// Of a copy taken in the middle of a step.
    fate: Option<Arc<Fate>>,
}

impl<B: Backend> Live<B> {
    pub(crate) fn new(slot: Arc<Slot<B>>, presence: Arc<()>) -> Self {
        Self {
            slot,
            _presence: presence,
        }
    }

    fn snapshot(&self) -> Snapshot<B> {
        Snapshot {
            leaf: self.slot.leaf(),
            slot: Arc::downgrade(&self.slot),
            fate: self.slot.fate(),
        }
    }
}

impl<B: Backend> Snapshot<B> {
    /// The slot, as long as its parameter waits for its step.
    pub(crate) fn armed_slot(&self) -> Option<Arc<Slot<B>>> {
        self.slot.upgrade().filter(|slot| slot.is_waiting())
    }

    /// The leaf, for its value.
    ///
    /// # Panics
    ///
    /// As [`Fate::check`].
    pub(crate) fn into_leaf(self) -> AdTensor<B> {
        if let Some(fate) = &self.fate {
            fate.check();
        }
        self.leaf
    }
}

impl<B: Backend> Clone for Repr<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Plain(tensor) => Self::Plain(tensor.clone()),
            Self::Live(live) => Self::Snapshot(live.snapshot()),
            Self::Snapshot(snapshot) => Self::Snapshot(snapshot.clone()),
            Self::Derived(derived) => Self::Derived(derived.clone()),
        }
    }
}

impl<B: Backend> ReleaseTensor<B> {
    pub(crate) fn plain(tensor: AdTensor<B>) -> Self {
        Self(Repr::Plain(tensor))
    }

    /// The owner turned into a snapshot; everything else as it is.
    pub(crate) fn read(self) -> Self {
        match self.0 {
            Repr::Live(live) => Self(Repr::Snapshot(live.snapshot())),
            _ => self,
        }
    }

    /// The snapshot behind this tensor, if it stands for a parameter that was armed.
    pub(crate) fn snapshot(&self) -> Option<Snapshot<B>> {
        match &self.0 {
            Repr::Live(live) => Some(live.snapshot()),
            Repr::Snapshot(snapshot) => Some(snapshot.clone()),
            Repr::Plain(_) | Repr::Derived(_) => None,
        }
    }

    /// The node of the leaf this tensor is, or stands for.
    pub(crate) fn leaf_id(&self) -> Option<NodeId> {
        match &self.0 {
            Repr::Plain(tensor) => Some(tensor.node.id),
            Repr::Live(live) => Some(live.slot.leaf().node.id),
            Repr::Snapshot(snapshot) => Some(snapshot.leaf.node.id),
            Repr::Derived(_) => None,
        }
    }

    /// The tensor without its tap: the leaf of a parameter, the bare value of what was derived.
    pub(crate) fn into_untapped(self) -> AdTensor<B> {
        match self.read().0 {
            Repr::Plain(tensor) => tensor,
            Repr::Snapshot(snapshot) => snapshot.into_leaf(),
            Repr::Derived(derived) => Autodiff::<B>::from_inner(derived.value()),
            Repr::Live(_) => unreachable!("`read` leaves no owner"),
        }
    }

    /// The value on the backend below.
    pub(crate) fn into_value(self) -> B::FloatTensorPrimitive {
        Autodiff::<B>::inner(self.into_untapped())
    }
}

impl<B: Backend> TensorMetadata for ReleaseTensor<B> {
    fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Plain(tensor) => tensor.dtype(),
            Repr::Live(live) => live.slot.dtype(),
            Repr::Snapshot(snapshot) => snapshot.leaf.dtype(),
            Repr::Derived(derived) => derived.value().dtype(),
        }
    }

    fn shape(&self) -> Shape {
        match &self.0 {
            Repr::Plain(tensor) => tensor.shape(),
            Repr::Live(live) => live.slot.shape(),
            Repr::Snapshot(snapshot) => snapshot.leaf.shape(),
            Repr::Derived(derived) => derived.value().shape(),
        }
    }

    fn rank(&self) -> usize {
        self.shape().num_dims()
    }
}

/// A handle to the node of `like` that carries `value` and claims the given order.
///
/// Burn orders the tape by depth. Lending a parameter's node the order of the activation it meets
/// leaves the order of the consumer exactly what it is without gradient release.
pub(crate) fn at_order<B: Backend>(
    like: &AdTensor<B>,
    value: B::FloatTensorPrimitive,
    order: usize,
) -> AdTensor<B> {
    let mut handle = Autodiff::<B>::from_inner(value);
    let node = Arc::get_mut(&mut handle.node).expect("a new tensor owns its node alone");
    node.id = like.node.id;
    node.requirement = like.node.requirement;
    node.properties = like.node.properties.clone();
    node.order = order;
    handle.rc = like.rc.clone();
    handle
}

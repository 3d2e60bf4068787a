//! The float tensor of the decorated backend: an autodiff tensor, or something that stands for an
//! armed parameter.

pub(crate) mod derived;
pub(crate) mod mask;
pub(crate) mod parameter;
pub(crate) mod record;
pub(crate) mod scope;

use burn::tensor::{DType, Shape, TensorMetadata, backend::Backend};
use burn_autodiff::NodeId;

use crate::{
    subgraph::Origins,
    tape::{self, AdTensor},
    tensor::derived::Derived,
    tensor::parameter::{Live, Snapshot},
    tensor::record::Replayable,
};

/// Float tensor primitive of [`GradientRelease`](crate::GradientRelease).
///
/// As long as nothing is armed it is a thin wrapper around the tensor of `burn-autodiff`.
#[derive(Clone)]
pub struct ReleaseTensor<B: Backend>(pub(crate) Repr<B>);

pub(crate) enum Repr<B: Backend> {
    /// An ordinary autodiff tensor.
    Plain(AdTensor<B>, Origins<B>),
    /// The one owner of an armed parameter: its value can be replaced during backward.
    Live(Live<B>),
    /// The value of an armed parameter at the moment it was read.
    Snapshot(Snapshot<B>),
    /// A function of armed parameters alone.
    Derived(Derived<B>),
    /// A result of an operation that is recorded to be replayed.
    Replayable(Replayable<B>),
}

impl<B: Backend> Clone for Repr<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Plain(tensor, origins) => Self::Plain(tensor.clone(), origins.clone()),
            Self::Live(live) if live.has_value() => Self::Snapshot(live.snapshot()),
            Self::Live(live) => Self::Live(live.without_value()),
            Self::Snapshot(snapshot) => Self::Snapshot(snapshot.clone()),
            Self::Derived(derived) => Self::Derived(derived.clone()),
            Self::Replayable(recorded) => Self::Replayable(recorded.clone()),
        }
    }
}

impl<B: Backend> ReleaseTensor<B> {
    /// A tensor that depends on no armed parameter.
    pub(crate) fn plain(tensor: AdTensor<B>) -> Self {
        Self(Repr::Plain(tensor, Origins::none()))
    }

    /// Turns an owner into a snapshot; other tensors stay as they are.
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
            Repr::Plain(..) | Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    /// The node of the leaf that this tensor is, or stands for.
    pub(crate) fn leaf_id(&self) -> Option<NodeId> {
        match &self.0 {
            Repr::Plain(tensor, _) => Some(tensor.node.id),
            Repr::Live(live) => Some(live.snapshot().leaf.node.id),
            Repr::Snapshot(snapshot) => Some(snapshot.leaf.node.id),
            Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    /// The autodiff tensor: the leaf of a parameter, or the bare value of a derived or recorded
    /// tensor.
    pub(crate) fn into_autodiff(self) -> AdTensor<B> {
        match self.read().0 {
            Repr::Plain(tensor, _) => tensor,
            Repr::Snapshot(snapshot) => snapshot.into_leaf(),
            Repr::Derived(derived) => tape::off_tape::<B>(derived.value()),
            Repr::Replayable(recorded) => tape::off_tape::<B>(recorded.value()),
            Repr::Live(_) => unreachable!("`read` leaves no owner"),
        }
    }

    /// The leaf, unless it is armed or depends on armed parameters.
    #[cfg(feature = "distributed")]
    pub(crate) fn into_free_leaf(self) -> Option<AdTensor<B>> {
        match self.read().0 {
            Repr::Plain(tensor, origins) => origins.is_none().then_some(tensor),
            Repr::Snapshot(snapshot) => {
                let slot = snapshot.slot();
                let is_free = slot.is_none_or(|slot| slot.claim() == crate::slot::Claim::Free);
                is_free.then(|| snapshot.into_leaf())
            }
            Repr::Live(_) | Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    /// The value on the backend below.
    pub(crate) fn into_value(self) -> B::FloatTensorPrimitive {
        self.into_autodiff().primitive
    }
}

impl<B: Backend> TensorMetadata for ReleaseTensor<B> {
    fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Plain(tensor, _) => tensor.dtype(),
            Repr::Live(live) => live.dtype(),
            Repr::Snapshot(snapshot) => snapshot.leaf.dtype(),
            Repr::Derived(derived) => derived.dtype(),
            Repr::Replayable(recorded) => recorded.dtype(),
        }
    }

    fn shape(&self) -> Shape {
        match &self.0 {
            Repr::Plain(tensor, _) => tensor.shape(),
            Repr::Live(live) => live.shape(),
            Repr::Snapshot(snapshot) => snapshot.leaf.shape(),
            Repr::Derived(derived) => derived.shape(),
            Repr::Replayable(recorded) => recorded.shape(),
        }
    }

    fn rank(&self) -> usize {
        self.shape().num_dims()
    }
}

impl<B: Backend> std::fmt::Debug for ReleaseTensor<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleaseTensor")
            .field("shape", &self.shape())
            .field("dtype", &self.dtype())
            .finish_non_exhaustive()
    }
}

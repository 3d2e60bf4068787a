//! The leaves whose gradients are awaited on this thread, and who awaits them.
//!
//! Burn calls a [`DistributedRegistration`] after each addition to a gradient. One of ours takes what
//! was added, and adds it to the sum so far as Burn does. How many additions are to come is
//! [counted](super::counts) when backward begins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::DistributedRegistration;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, TensorPrimitive,
};
use burn::tensor::container::TensorContainer;

use crate::backend::{added, kind_of_backend, with_backend};

/// Receives complete gradients.
pub(crate) trait Owner {
    /// Whether the gradient can be used now.
    fn readiness(&self, _place: usize) -> Readiness {
        Readiness::Ready
    }

    /// The gradient of this leaf will be registered, as it is in the graph of the loss.
    fn is_in_graph(&self, _place: usize) {}

    /// Whether the pass is refused, as none of the leaves is in the graph.
    fn is_refused(&self) -> bool {
        false
    }

    /// Backward begins; nothing is to be done with gradients if it is refused.
    fn begins(&self, _is_refused: bool) {}

    /// The gradient is complete.
    fn complete(&self, place: usize, grad: DispatchTensor);

    /// The gradient was complete when backward had nothing left but parameters.
    fn is_late(&self, _place: usize) {}

    /// Backward has ended, and fewer registrations came than the leaf has uses: this is their sum.
    fn is_left(&self, place: usize, grad: Option<DispatchTensor>);

    /// More registrations came than the leaf has uses.
    fn is_added_to(&self, place: usize);
}

/// Whether a complete gradient can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// The operation that registered it may still hold the weight.
    WeightIsShared,
    /// The owner runs somebody else's code.
    Busy,
}

/// A leaf whose gradient is awaited.
struct Awaited {
    owner: Rc<dyn Owner>,
    /// Where the owner has it.
    place: usize,
    take: TakeGradient,
    /// The sum of the registrations so far.
    partial: Option<DispatchTensor>,
    progress: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    /// So many registrations are to come.
    Left(usize),
    /// So many gradients of other nodes had been registered when it was complete.
    CompleteAfter(u64),
}

/// Takes a gradient out of Burn's container.
pub(crate) type TakeGradient = fn(&mut TensorContainer<u64>, u64) -> Option<DispatchTensor>;

#[derive(Default)]
struct Awaiting {
    by_leaf: HashMap<u64, Awaited>,
    /// Complete gradients that wait for their weight, and how many registrations they have waited for.
    waiting: Vec<(u64, usize)>,
    /// How many gradients of other nodes were registered.
    others: u64,
}

thread_local! {
    /// Of this thread, because Burn runs a backward pass on the thread that asks for it, and gives the
    /// nodes of scopes nothing of ours.
    static AWAITING: RefCell<Awaiting> = RefCell::default();
}

/// An operation may hold a weight until it has registered the gradients of its other parents:
/// convolutions register two more.
const PATIENCE: usize = 2;

/// Leaves that are awaited until this is dropped.
#[derive(Debug, Default)]
pub struct Frame {
    leaves: Vec<u64>,
}

impl Frame {
    pub(crate) fn leaves(&self) -> Vec<u64> {
        self.leaves.clone()
    }

    /// Awaits the gradient of a leaf. Goes on from the sum of `partial`. Of two owners of one leaf the
    /// first gets its gradient, as with Burn's `GradientsParams`. Returns whether this is the first.
    pub(crate) fn wait_for(
        &mut self,
        leaf: u64,
        take: TakeGradient,
        partial: Option<DispatchTensor>,
        owner: Rc<dyn Owner>,
        place: usize,
    ) -> bool {
        let is_first = AWAITING.with_borrow_mut(|awaiting| match awaiting.by_leaf.entry(leaf) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Awaited {
                    owner,
                    place,
                    take,
                    partial,
                    progress: Progress::Left(0),
                });
                true
            }
        });
        if is_first {
            self.leaves.push(leaf);
        }
        is_first
    }

    /// Gives the owners what backward has left.
    pub(crate) fn finish(&self) {
        let own = AWAITING.with_borrow_mut(|awaiting| {
            let waiting = std::mem::take(&mut awaiting.waiting);
            let (own, others) = waiting
                .into_iter()
                .partition::<Vec<_>, _>(|(leaf, _)| self.leaves.contains(leaf));
            awaiting.waiting = others;
            own
        });
        own.into_iter().for_each(|(leaf, _)| complete(leaf));
        for leaf in &self.leaves {
            let ended = AWAITING.with_borrow_mut(|awaiting| {
                let others = awaiting.others;
                let awaited = awaiting.by_leaf.get_mut(leaf)?;
                let (owner, place) = (awaited.owner.clone(), awaited.place);
                let left = match awaited.progress {
                    Progress::Left(_) => Some(awaited.partial.take()),
                    Progress::CompleteAfter(then) if then == others => None,
                    Progress::CompleteAfter(_) => return None,
                };
                Some((owner, place, left))
            });
            match ended {
                Some((owner, place, Some(partial))) => owner.is_left(place, partial),
                Some((owner, place, None)) => owner.is_late(place),
                None => {}
            }
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // The thread may be about to end.
        let left = AWAITING.try_with(|awaiting| {
            let awaiting = &mut *awaiting.borrow_mut();
            let leaves = std::mem::take(&mut self.leaves);
            awaiting.waiting.retain(|(leaf, _)| !leaves.contains(leaf));
            let left = leaves
                .iter()
                .filter_map(|leaf| awaiting.by_leaf.remove(leaf));
            let left: Vec<_> = left.collect();
            if awaiting.by_leaf.is_empty() {
                // Between two passes it takes no memory.
                awaiting.by_leaf = HashMap::new();
            }
            left
        });
        // Without the borrow: what an owner drops may run somebody else's code.
        drop(left);
    }
}

pub(crate) fn is_awaited(leaf: NodeId) -> bool {
    AWAITING.with_borrow(|awaiting| awaiting.by_leaf.contains_key(&leaf.value))
}

/// Takes the sum of the registrations so far of a leaf that is awaited.
pub(crate) fn take_partial(leaf: NodeId) -> Option<DispatchTensor> {
    AWAITING.with_borrow_mut(|awaiting| awaiting.by_leaf.get_mut(&leaf.value)?.partial.take())
}

/// One registration of a leaf that is awaited, which may bring nothing.
pub(crate) fn reach(leaf: u64, grad: Option<DispatchTensor>) {
    let counted = AWAITING.with_borrow_mut(|awaiting| {
        let awaited = awaiting.by_leaf.get_mut(&leaf)?;
        let Progress::Left(left) = &mut awaited.progress else {
            return None;
        };
        *left = left.checked_sub(1)?;
        let is_last = *left == 0;
        Some((awaited.partial.take(), is_last))
    });
    let Some((partial, is_last)) = counted else {
        if grad.is_some() {
            refuse(leaf);
        }
        return;
    };
    // As Burn adds: the new one first. Without the borrow: threads of a backend that wait for their
    // work may take up another backward pass.
    let sum = added(grad, partial);
    let is_complete = is_last && sum.is_some();
    AWAITING.with_borrow_mut(|awaiting| {
        if let Some(awaited) = awaiting.by_leaf.get_mut(&leaf) {
            awaited.partial = sum;
        }
    });
    if is_complete {
        complete_when_ready(leaf);
    }
}

/// Tells the owner of a leaf that its gradient is not what was counted.
pub(crate) fn refuse(leaf: u64) {
    if let Some((owner, place)) = owner_of(leaf) {
        owner.is_added_to(place);
    }
}

fn owner_of(leaf: u64) -> Option<(Rc<dyn Owner>, usize)> {
    AWAITING.with_borrow(|awaiting| {
        let awaited = awaiting.by_leaf.get(&leaf)?;
        Some((awaited.owner.clone(), awaited.place))
    })
}

fn complete_when_ready(leaf: u64) {
    let Some((owner, place)) = owner_of(leaf) else {
        return;
    };
    match owner.readiness(place) {
        Readiness::Ready => complete(leaf),
        _ => AWAITING.with_borrow_mut(|awaiting| awaiting.waiting.push((leaf, 0))),
    }
}

fn complete(leaf: u64) {
    let taken = AWAITING.with_borrow_mut(|awaiting| {
        let awaited = awaiting.by_leaf.get_mut(&leaf)?;
        let grad = awaited.partial.take()?;
        awaited.progress = Progress::CompleteAfter(awaiting.others);
        Some((awaited.owner.clone(), awaited.place, grad))
    });
    if let Some((owner, place, grad)) = taken {
        owner.complete(place, grad);
    }
}

/// Completes what waited for an operation to let its weight go.
fn ripen() {
    let waiting = AWAITING.with_borrow_mut(|awaiting| std::mem::take(&mut awaiting.waiting));
    for (leaf, waited) in waiting {
        let readiness = owner_of(leaf).map(|(owner, place)| owner.readiness(place));
        let still = match readiness {
            None => None,
            Some(Readiness::Ready) => {
                complete(leaf);
                None
            }
            Some(Readiness::Busy) => Some(waited),
            Some(Readiness::WeightIsShared) if waited + 1 >= PATIENCE => {
                complete(leaf);
                None
            }
            Some(Readiness::WeightIsShared) => Some(waited + 1),
        };
        if let Some(waited) = still {
            AWAITING.with_borrow_mut(|awaiting| awaiting.waiting.push((leaf, waited)));
        }
    }
}

/// Tells the owners that backward begins, with how many registrations of each leaf are to come.
pub(super) fn begin(counts: HashMap<u64, usize>) {
    let mut owners: HashMap<*const (), Rc<dyn Owner>> = HashMap::new();
    for (leaf, count) in counts {
        let owner = AWAITING.with_borrow_mut(|awaiting| {
            let awaited = awaiting.by_leaf.get_mut(&leaf)?;
            awaited.progress = Progress::Left(count);
            Some((awaited.owner.clone(), awaited.place))
        });
        if let Some((owner, place)) = owner {
            if count > 0 {
                owner.is_in_graph(place);
            }
            owners.insert(Rc::as_ptr(&owner).cast(), owner);
        }
    }
    // Before any of them has changed anything.
    let is_refused = owners.values().any(|owner| owner.is_refused());
    owners.values().for_each(|owner| owner.begins(is_refused));
}

/// Watches the registrations of a backward pass.
pub(super) struct Watch;

impl DistributedRegistration for Watch {
    fn on_register(&mut self, id: &NodeId, container: &mut TensorContainer<u64>) {
        if AWAITING.with_borrow(|awaiting| !awaiting.waiting.is_empty()) {
            ripen();
        }
        let take = AWAITING.with_borrow_mut(|awaiting| {
            let awaited = awaiting.by_leaf.get(&id.value);
            awaiting.others += u64::from(awaited.is_none());
            Some(awaited?.take)
        });
        if let Some(take) = take {
            reach(id.value, take(container, id.value));
        }
    }
}

/// How a gradient on the backend of a tensor is taken.
pub(crate) fn take_gradient(like: &DispatchTensor) -> TakeGradient {
    fn take<B: Backend>(container: &mut TensorContainer<u64>, id: u64) -> Option<FloatTensor<B>> {
        Some(container.remove::<TensorPrimitive<B>>(&id)?.tensor())
    }
    let take: Option<TakeGradient> =
        with_backend!(kind_of_backend(&like.kind), |B, wrap, _like| {
            |container, id| {
                let grad = take::<B>(container, id)?;
                Some(DispatchTensor {
                    kind: wrap(BackendTensor::Float(grad)),
                    autodiff: DispatchAutodiffContext::Disabled,
                })
            }
        });
    take.expect("the backend of a leaf is known")
}

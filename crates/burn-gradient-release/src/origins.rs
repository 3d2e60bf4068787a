//! Which armed parameters a tensor depends on.
//!
//! A backward pass starts from a loss, and burn-autodiff does not tell what is below it. So each
//! result of armed parameters carries its origins along.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};

use crate::{
    tape::AdTensor,
    uses::{Uses, lock},
};

/// A tensor derived from parameters, as a backward pass sees it.
pub(crate) trait Replay<B: Backend>: Send + Sync {
    /// Grows from operand to result.
    fn index(&self) -> u64;

    /// Decides, once all that is derived from this tensor has decided, where it runs backward.
    fn settle(&self);

    /// Puts it on the tape there, reached after what is reached from `next`. Returns the node to
    /// reach it from.
    fn replay(self: Arc<Self>, next: AdTensor<B>, values: &mut Values<B>) -> AdTensor<B>;
}

/// Values of derived tensors that other derived tensors are replayed with, by index, and how many
/// still want each.
pub(crate) type Values<B> = HashMap<u64, (FloatTensor<B>, usize)>;

/// Parameters armed together, and what the forward passes derived from them.
pub(crate) struct Group<B: Backend> {
    parameters: Mutex<Vec<Weak<Uses<B>>>>,
    derived: Mutex<Vec<Weak<dyn Replay<B>>>>,
}

impl<B: Backend> Group<B> {
    pub(crate) fn new() -> Self {
        Self {
            parameters: Mutex::new(Vec::new()),
            derived: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn add_parameter(&self, uses: &Arc<Uses<B>>) {
        lock(&self.parameters).push(Arc::downgrade(uses));
    }
}

/// The groups of parameters that a tensor depends on.
pub(crate) struct Origins<B: Backend>(Option<Arc<[Arc<Group<B>>]>>);

impl<B: Backend> Origins<B> {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn of(group: Arc<Group<B>>) -> Self {
        Self(Some(Arc::new([group])))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    fn groups(&self) -> &[Arc<Group<B>>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Adds the origins of another operand.
    pub(crate) fn join(&mut self, other: &Self) {
        let (mine, theirs) = match (&self.0, &other.0) {
            (_, None) => return,
            (None, Some(_)) => return self.0.clone_from(&other.0),
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
            return self.0.clone_from(&other.0);
        }
        let new = theirs.iter().filter(|group| !is_in(mine, group));
        self.0 = Some(mine.iter().chain(new).cloned().collect());
    }

    pub(crate) fn add_derived(&self, derived: &Arc<impl Replay<B> + 'static>) {
        let derived: Arc<dyn Replay<B>> = derived.clone();
        for group in self.groups() {
            lock(&group.derived).push(Arc::downgrade(&derived));
        }
    }

    /// The uses of the parameters.
    pub(crate) fn parameters(&self) -> Vec<Arc<Uses<B>>> {
        let groups = self.groups().iter();
        let parameters = groups.map(|group| alive(&group.parameters));
        parameters.collect::<Vec<_>>().concat()
    }

    /// What was derived from the parameters and is still on the tape, operands first.
    pub(crate) fn derived(&self) -> Vec<Arc<dyn Replay<B>>> {
        let groups = self.groups().iter();
        let mut derived = groups
            .map(|group| alive(&group.derived))
            .collect::<Vec<_>>()
            .concat();
        derived.sort_by_key(|derived| derived.index());
        derived.dedup_by_key(|derived| derived.index());
        derived
    }
}

/// Those that are still held, forgetting the others.
fn alive<T: ?Sized>(held: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let mut held = lock(held);
    held.retain(|weak| weak.strong_count() > 0);
    held.iter().filter_map(Weak::upgrade).collect()
}

impl<B: Backend> Clone for Origins<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> std::fmt::Debug for Origins<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Origins")
            .field(&self.groups().len())
            .finish()
    }
}

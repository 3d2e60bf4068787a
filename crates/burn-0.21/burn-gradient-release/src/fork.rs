//! Arming a model whose owner only hands out copies of it.
//!
//! An owner such as the `Learner` of burn-train replaces its model by one that user code returns,
//! or by a fork. A fork runs no user code: it takes every parameter, sends it to the device it is
//! on and makes a leaf of it. While a [`Scope`] is open on this thread, the leaves that it names
//! come out armed.

use std::{any::Any, cell::RefCell, collections::HashMap};

use burn::tensor::backend::Backend;
use burn_autodiff::NodeId;

use crate::{
    tensor::ReleaseTensor,
    tensor::parameter::{Armed, Arming, Live},
    util::lend::lend,
};

thread_local! {
    /// The scope of whatever backend forks; the type of a thread local cannot name it.
    static SCOPE: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Leaves to arm, and the parameters armed so far.
#[derive(Default)]
pub(crate) struct Scope<B: Backend> {
    /// Armings by leaf.
    waiting: HashMap<NodeId, Arming<B>>,
    armed: Vec<Armed<B>>,
}

impl<B: Backend> Scope<B> {
    /// Names a parameter by its leaf.
    pub(crate) fn push(&mut self, leaf: NodeId, arming: Arming<B>) {
        self.waiting.insert(leaf, arming);
    }

    /// Runs the fork. Returns the parameters that it armed.
    pub(crate) fn run(self, fork: impl FnOnce()) -> Vec<Armed<B>> {
        let scope = lend(&SCOPE, Box::new(self), fork);
        let scope = scope.and_then(|scope| scope.downcast::<Self>().ok());
        scope.map_or_else(Vec::new, |scope| scope.armed)
    }
}

/// Whether this is a leaf that the current fork is to arm.
pub(crate) fn is_to_be_armed<B: Backend>(tensor: &ReleaseTensor<B>) -> bool {
    with_scope(|scope: &mut Scope<B>| {
        tensor
            .leaf_id()
            .is_some_and(|leaf| scope.waiting.contains_key(&leaf))
    })
    .unwrap_or(false)
}

/// Arms the leaf, if the current fork is to.
pub(crate) fn arm<B: Backend>(tensor: &ReleaseTensor<B>) -> Option<Live<B>> {
    let arming = with_scope(|scope: &mut Scope<B>| {
        let leaf = tensor.leaf_id()?;
        scope.waiting.remove(&leaf)
    })??;
    let (armed, live) = arming.arm(tensor.clone().into_autodiff());
    with_scope(|scope: &mut Scope<B>| scope.armed.push(armed));
    Some(live)
}

/// Looks into the scope that is open on this thread for this backend.
fn with_scope<B: Backend, R>(look: impl FnOnce(&mut Scope<B>) -> R) -> Option<R> {
    SCOPE.with_borrow_mut(|scope| Some(look(scope.as_mut()?.downcast_mut()?)))
}

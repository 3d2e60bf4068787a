//! Reduction of complete gradients over the replicas of a model, before their step.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    error::Error,
    mem,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use burn::{
    module::ParamId,
    optim::LearningRate,
    tensor::{backend::Backend, ops::FloatTensor},
};

use lean_arithmetic::turns::Turns;

use crate::util::lock::lock;

/// Why replicas could not agree.
pub type ReductionError = Box<dyn Error + Send + Sync>;

/// Reduces gradients over the replicas of a model that is trained data parallel.
///
/// An optimizer [with a reduction](crate::ReleaseOptimizer::with_reduction) hands it each gradient
/// the moment it is complete, in backward or in `step`, and goes on with the result: loss scaling,
/// clipping and the step of the optimizer see the mean over all replicas. Frozen parameters and the
/// micro-batches of a [`ReleaseAccumulator`](crate::ReleaseAccumulator) are not reduced.
///
/// All replicas make the same calls in the same order, because they run backward over equal models;
/// if each chooses what to recompute by its own share, they keep to one [order](Self::order). If a
/// replica differs, all of them should get an error that says which one, and how. In backward an
/// error becomes a panic, since Burn's trait cannot return one.
pub trait GradientReduction<B: Backend>: Send + Sync {
    /// Begins a backward pass of armed parameters, or a part of one: recomputed activations divide
    /// it.
    ///
    /// Replicas that are threads of one process have to meet here. burn-autodiff ends each pass
    /// with a look at the graphs of all threads, and waits for those that run backward; one of
    /// these may wait for a gradient of this replica.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on this call.
    fn begin_part(&self) -> Result<(), ReductionError> {
        Ok(())
    }

    /// Begins to reduce a complete gradient. It is awaited before more than
    /// [`max_in_flight`](Self::max_in_flight) are in flight, in the order in which they were
    /// begun.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the gradient to reduce.
    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<B>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<B>>, ReductionError>;

    /// The order in which all replicas reduce, for the case that each may complete its gradients in
    /// a different one: [`Recompute`](crate::Recompute) chooses what to recompute by the sizes of a
    /// replica's own share. A complete gradient waits for those before it whose parameters the
    /// forward pass has used; gradients that are not in the order wait for the end of backward. `None`
    /// reduces gradients as they come.
    fn order(&self) -> Option<Vec<ParamId>> {
        None
    }

    /// Takes note of the order in which the gradients of a backward pass were complete here, where
    /// there is an [`order`](Self::order) to keep.
    fn completed(&self, _order: Vec<ParamId>) {}

    /// Number of gradients that may be in flight while backward computes the next.
    fn max_in_flight(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// Whether this replica steps the parameter, and so has its optimizer state.
    fn is_owner(&self, _param: ParamId) -> bool {
        true
    }

    /// Sends the weight of a parameter after its step from its owner to the other replicas.
    /// `weight` is the new one at the owner, and the old one elsewhere.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the owner of the weight.
    fn weight_from_owner(
        &self,
        _param: ParamId,
        weight: FloatTensor<B>,
    ) -> Result<FloatTensor<B>, ReductionError> {
        Ok(weight)
    }

    /// Ends an optimizer step, in which every replica has stepped the same parameters: with this
    /// learning rate, but for those that have one of the `other_rates`.
    ///
    /// # Errors
    ///
    /// If a replica makes another call, or steps with other rates.
    fn end_step(
        &self,
        _learning_rate: LearningRate,
        _other_rates: &HashMap<ParamId, LearningRate>,
    ) -> Result<(), ReductionError> {
        Ok(())
    }
}

/// The replicas that need a reduced gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// Every replica.
    All,
    /// At least the replica that steps the parameter.
    Owner,
}

/// A gradient in flight.
pub trait PendingGradient<B: Backend>: Send {
    /// Waits for the mean over all replicas. `None` on a replica that needs none.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the gradient to reduce.
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<B>>, ReductionError>;
}

/// Receives a reduced gradient.
pub(crate) trait Receiver<B: Backend>: Send + Sync {
    fn reduced(&self, grad: Option<FloatTensor<B>>);
}

/// The gradients in flight of parameters that were armed together.
pub(crate) struct InFlight<B: Backend> {
    reduction: Arc<dyn GradientReduction<B>>,
    recipients: Recipients,
    under_way: Mutex<VecDeque<UnderWay<B>>>,
    /// Whether replicas may complete their gradients in different orders.
    is_ordered: bool,
    /// The parameters whose gradients may come in this pass.
    expected: Mutex<HashSet<u64>>,
    /// The order of this pass. `None` before its first gradient.
    turns: Mutex<Option<Turns<Complete<B>>>>,
}

type UnderWay<B> = (Box<dyn PendingGradient<B>>, Arc<dyn Receiver<B>>);

type Complete<B> = (FloatTensor<B>, Arc<dyn Receiver<B>>);

impl<B: Backend> InFlight<B> {
    /// Reduces gradients as they come, or, if `is_ordered`, in the order of the reduction.
    pub(crate) fn new(
        reduction: Arc<dyn GradientReduction<B>>,
        recipients: Recipients,
        is_ordered: bool,
    ) -> Self {
        Self {
            reduction,
            recipients,
            under_way: Mutex::default(),
            is_ordered,
            expected: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    /// Notes before a backward pass that the gradient of a parameter may come.
    pub(crate) fn expect(&self, param: ParamId) {
        lock(&self.expected).insert(param.val());
    }

    pub(crate) fn begin_part(&self) {
        agree(self.reduction.begin_part());
    }

    /// Takes a complete gradient, and sends it once it is its turn and there is room.
    pub(crate) fn push(
        &self,
        param: ParamId,
        grad: FloatTensor<B>,
        receiver: Arc<dyn Receiver<B>>,
    ) {
        let mut turns = lock(&self.turns);
        if self.is_ordered && turns.is_none() {
            *turns = self.reduction.order().map(|order| {
                let mut turns = Turns::new(order.iter().map(ParamId::val));
                turns.begin(|param| lock(&self.expected).contains(&param));
                turns
            });
        }
        let Some(waiting) = turns.as_mut() else {
            drop(turns);
            return self.send(param, grad, receiver);
        };
        waiting.complete(param.val(), (grad, receiver));
        // Without the lock: a step runs code of the optimizer.
        drop(turns);
        let next = || lock(&self.turns).as_mut().and_then(Turns::take_next);
        while let Some((param, (grad, receiver))) = next() {
            self.send(param.into(), grad, receiver);
        }
    }

    fn send(&self, param: ParamId, grad: FloatTensor<B>, receiver: Arc<dyn Receiver<B>>) {
        while lock(&self.under_way).len() >= self.reduction.max_in_flight().get() {
            self.wait_for_next();
        }
        let pending = agree(self.reduction.begin(param, grad, self.recipients));
        lock(&self.under_way).push_back((pending, receiver));
    }

    /// Ends a backward pass: waits for all gradients in flight.
    pub(crate) fn wait_for_all(&self) {
        lock(&self.expected).clear();
        let turns = lock(&self.turns).take();
        if let Some(mut turns) = turns {
            for (param, (grad, receiver)) in turns.take_rest() {
                self.send(param.into(), grad, receiver);
            }
            let completed = turns.take_completed().into_iter().map(ParamId::from);
            self.reduction.completed(completed.collect());
        }
        while self.wait_for_next() {}
    }

    /// Drops the gradients of a backward pass that has panicked. Those in flight have their
    /// parameters, which have this.
    pub(crate) fn drop_all(&self) {
        lock(&self.expected).clear();
        // Without the locks: a reduction may have code of its own there.
        let turns = lock(&self.turns).take();
        let under_way = mem::take(&mut *lock(&self.under_way));
        drop((turns, under_way));
    }

    fn wait_for_next(&self) -> bool {
        // Without the lock: a step runs code of the optimizer.
        let next = lock(&self.under_way).pop_front();
        let has_next = next.is_some();
        if let Some((pending, receiver)) = next {
            receiver.reduced(agree(pending.wait()));
        }
        has_next
    }
}

/// # Panics
///
/// If the replicas do not agree: there is no gradient to go on with.
pub(crate) fn agree<T>(result: Result<T, ReductionError>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}

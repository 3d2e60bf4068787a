//! Reduction of complete gradients over the replicas of a model.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use burn::Tensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::Shape;
use lean_arithmetic::turns::Turns;

use crate::error::{ReleaseError, expect};
use crate::lock::lock;

/// Why replicas could not agree.
pub type ReductionError = Box<dyn Error + Send + Sync>;

/// Reduces gradients over the replicas of a model that is trained data parallel.
///
/// An optimizer [with a reduction](crate::ReleaseOptimizer::with_reduction) hands it each gradient
/// the moment it is complete, in backward or in `step`, and steps with the result. The
/// micro-batches of a [`ReleaseAccumulator`](crate::ReleaseAccumulator) are not reduced, but the
/// sum that the last one is stepped with. Gradients and weights come in one dimension.
///
/// All replicas make the same calls in the same order, because they run backward over equal models;
/// if each recomputes other scopes, as with a [`Budget`](crate::Budget), they keep to one
/// [order](Self::order). If a replica differs, all of them should get an error that says which one,
/// and how. In backward an error becomes a panic, since Burn's trait cannot return one.
pub trait GradientReduction: Send + Sync {
    /// Begins to reduce a complete gradient. It is awaited before more than
    /// [`max_in_flight`](Self::max_in_flight) are in flight, in the order in which they were begun.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the gradient to reduce.
    fn begin(
        &self,
        param: ParamId,
        grad: Tensor<1>,
        recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient>, ReductionError>;

    /// The order in which all replicas reduce the gradients of a backward pass, for the case that
    /// each may complete them in a different one. A complete gradient waits for those before it whose
    /// parameters the forward pass has used; gradients that are not in the order wait until a weight is
    /// read, or for `step`. `None` reduces gradients as they come.
    fn order(&self) -> Option<Vec<ParamId>> {
        None
    }

    /// Takes note of the order in which gradients were complete here, where there is an
    /// [`order`](Self::order) to keep.
    fn completed(&self, _order: Vec<ParamId>) {}

    /// How many gradients may be in flight while backward computes the next.
    fn max_in_flight(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// Whether each replica has the optimizer states of a part of the parameters.
    fn is_sharded(&self) -> bool {
        false
    }

    /// Whether this replica steps the parameter, and so has its optimizer state.
    fn is_owner(&self, _param: ParamId) -> bool {
        true
    }

    /// Sends the weight of a parameter after its step from its owner to the other replicas.
    /// `weight` is the new one at the owner, and the old one elsewhere. Called only if states are
    /// [sharded](Self::is_sharded).
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the owner of the weight.
    fn weight_from_owner(
        &self,
        _param: ParamId,
        weight: Tensor<1>,
    ) -> Result<Tensor<1>, ReductionError> {
        Ok(weight)
    }

    /// Takes the states of the parameters that this replica owns out of a record of all states.
    /// Called only if states are [sharded](Self::is_sharded).
    ///
    /// # Errors
    ///
    /// If the owner of a state is not known.
    fn own_states(&self, record: OptimizerRecord) -> Result<OptimizerRecord, ReductionError> {
        Ok(record)
    }

    /// Ends an optimizer step, in which every replica has stepped the same parameters.
    ///
    /// # Errors
    ///
    /// If a replica makes another call, or steps with other rates.
    fn end_step(&self, _rates: &ModuleLearningRate) -> Result<(), ReductionError> {
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
pub trait PendingGradient: Send {
    /// Waits for the mean over all replicas. `None` on a replica that needs none.
    ///
    /// # Errors
    ///
    /// If the replicas do not agree on the gradient to reduce.
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError>;
}

/// Receives a reduced gradient.
pub(crate) type Receiver<'a> =
    &'a mut dyn FnMut(ParamId, Option<Tensor<1>>) -> Result<(), ReleaseError>;

type Complete = (Tensor<1>, Recipients);

/// The gradients of an optimizer's step that are in flight.
pub(crate) struct InFlight {
    reduction: Arc<dyn GradientReduction>,
    /// The order of this pass. `None` if gradients are reduced as they come.
    turns: Mutex<Option<Turns<Complete>>>,
    under_way: Mutex<VecDeque<(ParamId, Box<dyn PendingGradient>)>>,
    /// The first error, after which nothing goes on.
    failed: Mutex<Option<ReleaseError>>,
}

impl InFlight {
    pub(crate) fn new(reduction: Arc<dyn GradientReduction>) -> Self {
        Self {
            reduction,
            turns: Mutex::default(),
            under_way: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    pub(crate) fn reduction(&self) -> &Arc<dyn GradientReduction> {
        &self.reduction
    }

    /// Refuses to go on after an error.
    pub(crate) fn check(&self) -> Result<(), ReleaseError> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Whether the gradients of this pass are reduced in the order of an earlier one.
    pub(crate) fn has_order(&self) -> bool {
        lock(&self.turns).is_some()
    }

    /// Begins a backward pass, in which gradients are reduced in the order of the one before.
    pub(crate) fn begin_pass(&self) {
        self.note_completed();
        let order = self.reduction.order();
        *lock(&self.turns) = order.map(|order| Turns::new(order.iter().map(ParamId::val)));
    }

    /// Takes a complete gradient of backward, and sends it once it is its turn and there is room.
    /// `is_used` says whether the forward pass has used a parameter.
    pub(crate) fn push(
        &self,
        param: ParamId,
        grad: Tensor<1>,
        recipients: Recipients,
        is_used: impl Fn(ParamId) -> bool,
        receiver: Receiver<'_>,
    ) -> Result<(), ReleaseError> {
        let mut turns = lock(&self.turns);
        let Some(waiting) = turns.as_mut() else {
            drop(turns);
            return self.send(param, grad, recipients, receiver);
        };
        waiting.begin(|param| is_used(param.into()));
        waiting.complete(param.val(), (grad, recipients));
        // Without the lock: a step runs code of the optimizer.
        drop(turns);
        let next = || lock(&self.turns).as_mut().and_then(Turns::take_next);
        while let Some((param, (grad, recipients))) = next() {
            self.send(param.into(), grad, recipients, receiver)?;
        }
        Ok(())
    }

    /// Sends a gradient once there is room.
    pub(crate) fn send(
        &self,
        param: ParamId,
        grad: Tensor<1>,
        recipients: Recipients,
        receiver: Receiver<'_>,
    ) -> Result<(), ReleaseError> {
        while lock(&self.under_way).len() >= self.reduction.max_in_flight().get() {
            self.wait_for_next(receiver)?;
        }
        let pending = self.tried(self.reduction.begin(param, grad, recipients))?;
        lock(&self.under_way).push_back((param, pending));
        Ok(())
    }

    /// The mean over all replicas, for all of them.
    pub(crate) fn mean(
        &self,
        param: ParamId,
        grad: DispatchTensor,
    ) -> Result<DispatchTensor, ReleaseError> {
        let shape = grad.shape();
        let pending = self.reduction.begin(param, flat(grad), Recipients::All);
        let mean = pending.and_then(|pending| pending.wait());
        let mean = mean.and_then(|mean| mean.ok_or_else(|| "a mean for all is missing".into()));
        Ok(shaped(self.tried(mean)?, shape))
    }

    /// Sends all gradients that wait for their turn, and waits for all that are in flight.
    pub(crate) fn wait_for_all(&self, receiver: Receiver<'_>) -> Result<(), ReleaseError> {
        let rest = lock(&self.turns).as_mut().map(Turns::take_rest);
        for (param, (grad, recipients)) in rest.into_iter().flatten() {
            self.send(param.into(), grad, recipients, receiver)?;
        }
        while self.wait_for_next(receiver)? {}
        Ok(())
    }

    fn wait_for_next(&self, receiver: Receiver<'_>) -> Result<bool, ReleaseError> {
        if let Some(error) = lock(&self.failed).clone() {
            return Err(error);
        }
        // Without the lock: a step runs code of the optimizer.
        let next = lock(&self.under_way).pop_front();
        let Some((param, pending)) = next else {
            return Ok(false);
        };
        let grad = self.tried(pending.wait())?;
        receiver(param, grad)?;
        Ok(true)
    }

    /// The weight of a parameter after the step of its owner.
    pub(crate) fn weight_from_owner(
        &self,
        param: ParamId,
        weight: DispatchTensor,
    ) -> Result<DispatchTensor, ReleaseError> {
        if !self.reduction.is_sharded() {
            return Ok(weight);
        }
        let shape = weight.shape();
        let weight = self.reduction.weight_from_owner(param, flat(weight));
        Ok(shaped(self.tried(weight)?, shape))
    }

    fn note_completed(&self) {
        let completed = lock(&self.turns).as_mut().map(Turns::take_completed);
        if let Some(completed) = completed.filter(|completed| !completed.is_empty()) {
            let completed = completed.into_iter().map(ParamId::from);
            self.reduction.completed(completed.collect());
        }
    }

    pub(crate) fn end_step(&self, rates: &ModuleLearningRate) -> Result<(), ReleaseError> {
        self.note_completed();
        self.tried(self.reduction.end_step(rates))
    }

    fn tried<T>(&self, result: Result<T, ReductionError>) -> Result<T, ReleaseError> {
        result.map_err(|error| {
            let error = ReleaseError::Reduction {
                reason: error.to_string(),
            };
            lock(&self.failed).get_or_insert(error).clone()
        })
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("under_way", &lock(&self.under_way).len())
            .finish_non_exhaustive()
    }
}

/// The states of a record that this replica owns; all of them without a sharded reduction.
///
/// # Panics
///
/// If a sharded reduction does not know the owner of a state.
pub(crate) fn own_states(
    record: OptimizerRecord,
    reduction: Option<&Arc<dyn GradientReduction>>,
) -> OptimizerRecord {
    match reduction {
        Some(reduction) if reduction.is_sharded() => expect(reduction.own_states(record)),
        _ => record,
    }
}

pub(crate) fn flat(tensor: DispatchTensor) -> Tensor<1> {
    let numbers = tensor.shape().num_elements();
    Tensor::from_dispatch(Dispatch::float_reshape(tensor, Shape::new([numbers])))
}

/// Restores the shape of a flattened tensor.
pub(crate) fn shaped(tensor: Tensor<1>, shape: Shape) -> DispatchTensor {
    Dispatch::float_reshape(tensor.into_dispatch(), shape)
}

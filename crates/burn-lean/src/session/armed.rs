//! A slot as its optimizer sees it.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use burn::Tensor;
use burn::backend::DispatchTensor;

use super::phase::{Phase, Purpose, Taken};
use super::weight::{Uses, Weight};
use super::{Session, Slot, State};
use crate::backend::{is_same_backend, plain};
use crate::error::ReleaseError;
use crate::lock::lock;
use crate::path::AnyParam;
use crate::reduction::shaped;

#[cfg_attr(not(feature = "train"), allow(dead_code))] // Only burn-train's Learner calls some.
impl Slot {
    /// Whether the parameter's step is at the end of backward, where all gradients exist.
    pub(crate) fn is_late(&self) -> bool {
        self.state().is_late
    }

    /// Takes the sum of earlier micro-batches, unless a step has used it.
    pub(crate) fn take_sum(&self) -> Option<DispatchTensor> {
        self.state().take_sum()
    }

    /// Returns the sum of earlier micro-batches, and keeps it.
    pub(crate) fn sum(&self) -> Option<DispatchTensor> {
        self.state().sum.as_deref().cloned()
    }

    pub(crate) fn has_sum(&self) -> bool {
        self.state().sum.is_some()
    }

    /// Whether the sums of an accumulator that has armed the parameter are known to be plain Burn's.
    pub(crate) fn has_plain_sums(&self) -> bool {
        let state = self.state();
        let is_held = state.purpose == Purpose::Hold;
        let session = state.session.upgrade().filter(|_| is_held);
        drop(state);
        session.is_none_or(|session| session.orders().is_plain())
    }

    /// Whether a forward pass has used the parameter.
    pub(crate) fn is_used(&self) -> bool {
        self.state().uses.all > 0
    }

    /// Says what to do with the gradient. The sum of an earlier arming stays, and `sum` is added.
    pub(crate) fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>) {
        let mut state = self.state();
        let sum = sum.map(plain);
        assert!(
            sum.as_ref()
                .is_none_or(|sum| is_same_backend(sum, &state.mark)),
            "gradient release: a sum of gradients is on another backend than its parameter"
        );
        state.purpose = purpose;
        state.add_to_sum(sum);
    }

    /// Moves the weight of a base into a slot whose arming has ended. Returns the new leaf.
    pub(crate) fn arm_again(
        &self,
        session: &Arc<Session>,
        param: &AnyParam,
        base: DispatchTensor,
    ) -> DispatchTensor {
        if let Some(before) = self.session() {
            // A model with adapters keeps its slots, and an accumulator may still have them.
            let mut slots = before.slots();
            let id = self.id();
            if slots
                .get(&id)
                .is_some_and(|slot| std::ptr::eq(&**slot, self))
            {
                slots.remove(&id);
            }
        }
        let (state, leaf) = State::arm(base, session);
        self.id.store(param.id.val(), Ordering::Relaxed);
        *lock(&self.path) = Arc::new(param.path.clone());
        *self.state() = state;
        leaf
    }

    /// Ends the arming, and returns the weight.
    pub(crate) fn end(&self) -> DispatchTensor {
        self.go_on();
        let mut state = self.state();
        let weight = state.weight.take(&self.path());
        state.end();
        weight
    }

    /// Ends the arming of a parameter that something else was loaded into, and drops the weight.
    pub(crate) fn drop_weight(&self) {
        self.state().end();
    }

    /// Ends the arming, and keeps the weight for models that still hold the slot's placeholder.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        if state.phase == Phase::Ended {
            return;
        }
        let taken = state.phase.taken();
        state.phase = Phase::Abandoned(taken);
        state.open = None;
        state.leave_tape(&self.path());
    }

    /// Receives the mean over all replicas: measures it or steps with it. Without a gradient, takes
    /// the weight from the replica that steps the parameter.
    pub(super) fn reduced(&self, grad: Option<Tensor<1>>) -> Result<(), ReleaseError> {
        let mut state = self.state();
        let session = state.session.upgrade();
        let session = session.expect("the session that reduces gradients exists");
        let shape = state.shape.clone();
        match (state.purpose, grad.map(|grad| shaped(grad, shape))) {
            (Purpose::MeasureNorm, Some(grad)) => {
                session.measure(self.id(), grad);
                state.phase = state.phase.after(Taken::Measured);
            }
            (_, grad) => self.step_with(&mut state, &session, grad)?,
        }
        Ok(())
    }

    /// Ends a micro-batch or a measuring pass: another pass over the same weight follows.
    pub(crate) fn rest(&self) {
        let mut state = self.state();
        if state.phase == Phase::Ended {
            return;
        }
        state.phase = Phase::Waiting;
        state.uses = Uses::default();
        if state.weight.is_here() {
            // The next forward pass makes a new hook.
            state.weight = Weight::Bare(state.weight.take(&self.path()));
        }
    }

    /// Steps with an ordinary gradient.
    pub(crate) fn step_now(&self, grad: DispatchTensor) {
        let left = self.take_gradient(plain(grad));
        assert!(
            left.is_none(),
            "only what is armed, and not stepped, has one"
        );
    }

    /// Notes that another parameter goes on with the weight.
    pub(crate) fn go_on(&self) {
        let state = self.state();
        let is_taken = state.phase.is_taken();
        state.has_gone_on.store(!is_taken, Ordering::Relaxed);
    }

    /// Refuses later backward passes over earlier forward passes.
    pub(crate) fn forget_hooks(&self) {
        let has_gone_on = std::mem::take(&mut self.state().has_gone_on);
        has_gone_on.store(true, Ordering::Relaxed);
    }

    /// Begins to watch for mappers that visit the parameter.
    pub(crate) fn watch(&self) {
        self.state().was_mapped = false;
    }

    /// Whether a mapper has visited the parameter since [`watch`](Self::watch).
    pub(crate) fn was_mapped(&self) -> bool {
        self.state().was_mapped
    }

    /// Whether the parameter of the model is gone, and copies may be left.
    pub(crate) fn is_dropped(&self) -> bool {
        self.owners.load(Ordering::Relaxed) == 0
    }

    /// Whether backward has stepped the parameter, and no call has ended that step.
    pub(crate) fn is_stepped(&self) -> bool {
        let state = self.state();
        !state.phase.has_ended() && state.is_after_step()
    }

    /// Whether a copy of the model exists that was taken after the step.
    pub(crate) fn has_stepped_copy(&self) -> bool {
        let state = self.state();
        let copies = state.snapshots.iter().chain(&state.moved);
        copies.filter_map(Weak::upgrade).any(|copy| copy.after_step)
    }

    /// The `ParamMapper` that the parameter had before it was armed.
    pub(crate) fn mapper(&self) -> Arc<dyn Any + Send + Sync> {
        lock(&self.mapper).clone()
    }

    pub(crate) fn set_mapper(&self, mapper: Arc<dyn Any + Send + Sync>) {
        *lock(&self.mapper) = mapper;
    }
}

//! A slot as its optimizer sees it.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use burn::Tensor;
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, TensorMetadata};

use super::state::{State, Uses, Weight};
use super::{Rearm, Slot};
use crate::armed_slot::{ArmedSlot, Phase, Purpose, Taken};
use crate::backend::{Inner, Primitive};
use crate::error::ReleaseError;
use crate::path::{Path, path_text};
use crate::reduction::shaped;
use crate::session::Session;

impl<B: Inner> ArmedSlot for Slot<B> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn leaf_id(&self) -> u64 {
        Self::leaf_id(self).value
    }

    fn phase(&self) -> Phase {
        Self::phase(self)
    }

    fn is_late(&self) -> bool {
        self.state().is_late
    }

    fn take_sum(&self) -> Option<DispatchTensor> {
        Some(plain::<B>(self.state().sum.take()?))
    }

    fn sum(&self) -> Option<DispatchTensor> {
        Some(plain::<B>(self.state().sum.clone()?))
    }

    fn has_sum(&self) -> bool {
        self.state().sum.is_some()
    }

    fn is_used(&self) -> bool {
        self.state().uses.all > 0
    }

    fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>) {
        let mut state = self.state();
        state.purpose = purpose;
        // The sum of an earlier arming stays.
        state.sum = match (state.sum.take(), sum.map(primitive_of::<B>)) {
            (Some(sum), Some(added)) => Some(B::float_add(sum, added)),
            (sum, added) => sum.or(added),
        };
    }

    fn end(&self) -> DispatchTensor {
        self.go_on();
        let mut state = self.state();
        state.end(Phase::Ended);
        state.leaf = None;
        plain::<B>(state.weight.take(&self.path))
    }

    fn reduced(&self, grad: Option<Tensor<1>>) -> Result<(), ReleaseError> {
        let mut state = self.state();
        let session = state.session.upgrade();
        let session = session.expect("the session that reduces gradients exists");
        let shape = state.placeholder.shape();
        let grad = grad.map(|grad| shaped::<B>(grad, shape));
        match (state.purpose, grad) {
            (Purpose::MeasureNorm, Some(grad)) => {
                (self.fns.measure)(&mut session.stepper(), self.id, grad);
                state.phase = state.phase.after(Taken::Measured);
            }
            (_, grad) => self.step_with(&mut state, &session, grad)?,
        }
        Ok(())
    }

    fn rest(&self) {
        let mut state = self.state();
        state.phase = Phase::Waiting;
        state.uses = Uses::default();
        if state.has_weight() {
            // The next forward pass makes a new hook.
            state.weight = Weight::Bare(state.weight.take(&self.path));
        }
    }

    fn step_now(&self, grad: DispatchTensor) {
        let taken = self.take_gradient(primitive_of::<B>(grad));
        assert!(
            taken.is_ok(),
            "only what is armed, and not stepped, has one"
        );
    }

    fn go_on(&self) {
        let state = self.state();
        let is_taken = state.phase.is_taken();
        state.has_gone_on.store(!is_taken, Ordering::Relaxed);
    }

    fn watch(&self) {
        self.state().was_mapped = false;
    }

    fn was_mapped(&self) -> bool {
        self.state().was_mapped
    }

    fn is_stepped(&self) -> bool {
        let state = self.state();
        !state.phase.has_ended() && state.is_after_step()
    }

    fn has_stepped_copy(&self) -> bool {
        let state = self.state();
        let copies = state.snapshots.iter().chain(&state.moved);
        copies.filter_map(Weak::upgrade).any(|copy| copy.after_step)
    }

    fn abandon(&self) {
        let mut state = self.state();
        let taken = state.phase.taken();
        state.end(Phase::Abandoned(taken));
    }

    fn mapper(&self) -> Arc<dyn Any + Send + Sync> {
        self.mapper.clone()
    }
}

impl<B: Inner> Rearm for Slot<B> {
    fn arm_again(&self, session: &Arc<Session>, base: DispatchTensor) -> DispatchTensor {
        let autodiff = base.autodiff;
        let Some(BackendTensor::Autodiff(weight)) = B::unwrap(base.kind) else {
            panic!(
                "gradient release: {} has moved to another backend",
                path_text(&self.path)
            );
        };
        let (state, leaf) = State::arm(weight.into_primitive(), session);
        *self.state() = state;
        DispatchTensor {
            kind: B::wrap(BackendTensor::Autodiff(leaf)),
            autodiff,
        }
    }
}

fn plain<B: Inner>(primitive: Primitive<B>) -> DispatchTensor {
    DispatchTensor {
        kind: B::wrap(BackendTensor::Float(primitive)),
        autodiff: DispatchAutodiffContext::Disabled,
    }
}

fn primitive_of<B: Inner>(tensor: DispatchTensor) -> Primitive<B> {
    match B::unwrap(tensor.kind) {
        Some(BackendTensor::Float(primitive)) => primitive,
        Some(BackendTensor::Autodiff(tracked)) => tracked.into_primitive(),
        _ => {
            panic!("gradient release: a sum of gradients is on another backend than its parameter")
        }
    }
}

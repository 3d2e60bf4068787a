//! Takes the gradient of a parameter, and steps with it.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;

use super::state::{State, Weight};
use super::{Slot, Stepping};
use crate::armed_slot::Purpose;
use crate::backend::{Inner, Primitive};
use crate::error::{ReleaseError, expect};
use crate::hook_orders::HookKey;
use crate::reduction::{InFlight, flat, shaped};
use crate::session::{Progress, Session};
use crate::tape::HookOwner;

impl<B: Inner> Slot<B> {
    /// Takes the complete gradient, or gives it back if the slot is not armed or has taken one.
    pub(crate) fn take_gradient(&self, grad: Primitive<B>) -> Result<(), Primitive<B>> {
        let mut state = self.state();
        let session = state.session.upgrade();
        let is_armed = |session: &Arc<Session>| session.is_armed() && state.ended.is_none();
        let Some(session) = session.filter(is_armed) else {
            return Err(grad);
        };
        if state.taken {
            state.second = true;
            return Err(grad);
        }
        match state.purpose {
            Purpose::Step if session.stepper().gradients.stops() => {
                // `step` will refuse, and hand the sum back.
                state.weight = Weight::Bare(state.weight.take(self.id));
                (state.taken, state.is_skipped) = (true, true);
                return Ok(());
            }
            Purpose::Step => {
                let grad = state.summed(grad);
                match session.in_flight() {
                    None => expect(self.step_with(&mut state, &session, Some(grad))),
                    Some(in_flight) => {
                        state.taken = true;
                        state.in_flight = true;
                        // Without the lock: other parameters may be stepped to make room.
                        drop(state);
                        expect(session.reduce(in_flight, self.id, flat::<B>(grad)));
                    }
                }
                return Ok(());
            }
            Purpose::MeasureNorm => {
                // The sum stays for the pass that steps.
                let grad = match &state.sum {
                    Some(sum) => B::float_add(sum.clone(), grad),
                    None => grad,
                };
                match session.in_flight() {
                    None => (self.fns.measure)(&mut session.stepper(), self.id, grad),
                    Some(in_flight) => {
                        state.taken = true;
                        state.in_flight = true;
                        state.weight = Weight::Bare(state.weight.take(self.id));
                        // Without the lock: other gradients may be measured to make room.
                        drop(state);
                        expect(session.reduce(in_flight, self.id, flat::<B>(grad)));
                        return Ok(());
                    }
                }
            }
            Purpose::Hold => {
                state.sum = Some(state.summed(grad));
                Progress::count(&session.progress.held);
            }
        }
        state.taken = true;
        // The next forward pass makes a new hook.
        state.weight = Weight::Bare(state.weight.take(self.id));
        Ok(())
    }

    /// Steps the parameter. Without a gradient, another replica steps it, and this one takes the
    /// weight from there. A replica that has the gradient of a parameter that it does not own
    /// decides like the owner whether to skip the step.
    pub(super) fn step_with(
        &self,
        state: &mut State<B>,
        session: &Session,
        grad: Option<Primitive<B>>,
    ) -> Result<(), ReleaseError> {
        let mut stepper = session.stepper();
        let mut weight = state.weight.take(self.id);
        stepper.stepping = true;
        let reduction = session.in_flight().map(InFlight::reduction);
        let is_owner = reduction.is_none_or(|reduction| reduction.is_owner(self.id));
        if let Some(grad) = grad {
            let is_in_place = weight.can_mut() && is_owner;
            let step = self.fns.step;
            let stepping = Stepping::begin(&self.stepping);
            let stepped = step(&mut stepper, self.id, &self.path, weight, grad, is_owner);
            drop(stepping);
            weight = stepped.weight;
            state.is_skipped = stepped.is_skipped;
            if is_in_place && !stepped.is_skipped {
                Progress::count(&session.progress.in_place);
            }
        }
        if let Some(in_flight) = session.in_flight()
            && in_flight.reduction().is_sharded()
        {
            let shape = weight.shape();
            let weight_of_owner = in_flight.weight_from_owner(self.id, flat::<B>(weight))?;
            weight = shaped::<B>(weight_of_owner, shape);
        }
        stepper.stepping = false;
        if !state.is_skipped {
            Progress::count(&session.progress.stepped);
        }
        state.weight = Weight::Bare(weight);
        state.taken = true;
        Ok(())
    }

    /// Takes the gradient of the hook on the model's tape, if there is one.
    pub(crate) fn remove_grad(&self, grads: &mut Gradients) -> Option<Primitive<B>> {
        match &self.state().weight {
            Weight::Hooked(hooked) => hooked.grad_remove(grads),
            _ => None,
        }
    }

    fn is_at(&self, hook: NodeId) -> bool {
        matches!(&self.state().weight, Weight::Hooked(hooked) if hooked.id() == hook)
    }

    /// Registers the mark of a taken gradient under the leaf, for `GradientsParams::from_grads`.
    pub(crate) fn mark_taken(&self, grads: &mut Gradients) {
        let (leaf, mark) = (self.leaf_id(), self.state().mark.clone());
        grads.register::<B>(leaf, mark);
    }
}

impl<B: Inner> HookOwner<B> for Slot<B> {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.session() {
            session.learn(hook, HookKey::on_model(self.id), checkpointer);
        }
        if !self.is_at(hook) {
            // A scope has stepped the parameter, so this hook has no gradient.
            let state = self.state();
            return state.taken && state.ended.is_none();
        }
        match self.remove_grad(grads) {
            Some(grad) => match self.take_gradient(grad) {
                Ok(()) => {
                    self.mark_taken(grads);
                    true
                }
                Err(grad) => {
                    grads.register::<B>(self.leaf_id(), grad);
                    true
                }
            },
            // Only scopes use the parameter, and none has left a gradient.
            None => true,
        }
    }
}

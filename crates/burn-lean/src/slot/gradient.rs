//! Takes the gradient of a parameter, and steps with it.

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;

use super::state::{State, Weight};
use super::{Slot, Stepping};
use crate::armed_slot::{Phase, Purpose, Taken};
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
        let session = match (state.phase, session.filter(|session| session.is_armed())) {
            (Phase::Waiting, Some(session)) => session,
            (Phase::Taken(taken), Some(_)) => {
                state.phase = Phase::TakenTwice(taken);
                return Err(grad);
            }
            _ => return Err(grad),
        };
        let (taken, grad) = match state.purpose {
            // `step` will refuse, and hand the sum back.
            Purpose::Step if session.stepper().gradients.stops() => (Taken::Skipped, None),
            Purpose::Step => (Taken::Stepped, Some(state.summed(grad))),
            // The sum stays for the pass that steps.
            Purpose::MeasureNorm => match &state.sum {
                Some(sum) => (Taken::Measured, Some(B::float_add(sum.clone(), grad))),
                None => (Taken::Measured, Some(grad)),
            },
            Purpose::Hold => {
                state.sum = Some(state.summed(grad));
                Progress::count(&session.progress.held);
                (Taken::Added, None)
            }
        };
        match (session.in_flight(), taken, grad) {
            (Some(in_flight), _, Some(grad)) => {
                state.phase = Phase::Taken(Taken::InFlight);
                // Without the lock: other parameters may be stepped to make room.
                drop(state);
                expect(session.reduce(in_flight, self.id, flat::<B>(grad)));
            }
            (None, Taken::Stepped, grad @ Some(_)) => {
                expect(self.step_with(&mut state, &session, grad));
            }
            (_, taken, grad) => {
                if let Some(grad) = grad {
                    (self.fns.measure)(&mut session.stepper(), self.id, grad);
                }
                state.phase = Phase::Taken(taken);
                // The next forward pass makes a new hook.
                state.weight = Weight::Bare(state.weight.take(&self.path));
            }
        }
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
        let mut weight = state.weight.take(&self.path);
        let mut taken = Taken::Stepped;
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
            if stepped.is_skipped {
                taken = Taken::Skipped;
            } else if is_in_place {
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
        if taken == Taken::Stepped {
            Progress::count(&session.progress.stepped);
        }
        state.weight = Weight::Bare(weight);
        state.phase = state.phase.after(taken);
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
            let phase = self.phase();
            return phase.is_taken() && !phase.has_ended();
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

//! Takes the gradient of a parameter, and steps with it.

use std::cell::RefCell;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{DispatchTensor, TensorMetadata};

use super::phase::{Phase, Purpose, Taken};
use super::weight::Weight;
use super::{Progress, Session, Slot, State};
use crate::backend::{added, in_f32};
use crate::error::{ReleaseError, expect};
use crate::hook_orders::HookKey;
use crate::marks;
use crate::reduction::flat;
use crate::tape::{HookOwner, register};

thread_local! {
    /// The addresses of the slots that this thread steps, and of their sessions. Other threads wait for
    /// the new weight, and this one would wait for itself. A step may train another model.
    static STEPPING: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Marks the slot as one that this thread steps, until it is dropped.
struct Stepping;

impl Stepping {
    fn begin(slot: &Slot, session: &Session) -> Self {
        let addresses = (address(slot), address(session));
        STEPPING.with_borrow_mut(|stepping| stepping.push(addresses));
        Self
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        STEPPING.with_borrow_mut(Vec::pop);
    }
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// Whether this thread steps such a slot; none any more when it ends, where an accumulator of the
/// thread's own may still be dropped.
fn is_stepping(is_it: impl Fn(&(usize, usize)) -> bool) -> bool {
    let stepping = STEPPING.try_with(|stepping| stepping.borrow().iter().any(is_it));
    stepping.unwrap_or(false)
}

impl Session {
    /// Whether this thread runs the optimizer's step of one of the parameters.
    pub(super) fn is_stepping(&self) -> bool {
        let session = address(self);
        is_stepping(|(_, of)| *of == session)
    }
}

impl Slot {
    /// Whether this thread runs the optimizer's step of this parameter, which has its weight.
    pub(super) fn is_stepping(&self) -> bool {
        let slot = address(self);
        is_stepping(|(of, _)| *of == slot)
    }

    /// Takes the complete gradient, or gives it back if the slot is not armed or has taken one.
    pub(crate) fn take_gradient(&self, grad: DispatchTensor) -> Option<DispatchTensor> {
        // Before the lock of the state: who has that of the slots takes it second.
        let session = self.armed_session();
        let mut state = self.state();
        let session = match (state.phase, session) {
            (Phase::Waiting, Some(session)) => session,
            (Phase::Taken(taken), Some(_)) => {
                state.phase = Phase::TakenTwice(taken);
                return Some(grad);
            }
            _ => return Some(grad),
        };
        let (taken, grad) = match state.purpose {
            Purpose::Step => {
                let gradients = &mut session.stepper().gradients;
                if gradients.stops_before(self.id()) {
                    // `step` will refuse, and hand the sum back.
                    (Taken::Skipped, None)
                } else if gradients.must_be_finite() {
                    // The sum stays until the step is known to be taken.
                    (Taken::Stepped, state.with_sum(grad))
                } else {
                    (Taken::Stepped, added(state.take_sum(), Some(grad)))
                }
            }
            // The sum stays for the pass that steps.
            Purpose::MeasureNorm => (Taken::Measured, state.with_sum(grad)),
            Purpose::Hold => {
                state.add_to_sum(Some(match session.sums_in_f32 {
                    true => in_f32(grad),
                    false => grad,
                }));
                Progress::count(&session.progress.held);
                (Taken::Added, None)
            }
        };
        match (session.in_flight(), taken, grad) {
            (Some(in_flight), _, Some(grad)) => {
                state.phase = Phase::Taken(Taken::InFlight);
                // Without the lock: other parameters may be stepped to make room.
                drop(state);
                expect(session.reduce(in_flight, self.id(), flat(grad)));
            }
            (None, Taken::Stepped, grad @ Some(_)) => {
                expect(self.step_with(&mut state, &session, grad));
            }
            (_, taken, grad) => {
                if let Some(grad) = grad {
                    session.measure(self.id(), grad);
                }
                state.phase = Phase::Taken(taken);
                // The next forward pass makes a new hook.
                state.weight = Weight::Bare(state.weight.take(&self.path()));
            }
        }
        None
    }

    /// Steps the parameter. Without a gradient, another replica steps it, and this one takes the
    /// weight from there. A replica that has the gradient of a parameter that it does not own
    /// decides like the owner whether to skip the step.
    pub(super) fn step_with(
        &self,
        state: &mut State,
        session: &Session,
        grad: Option<DispatchTensor>,
    ) -> Result<(), ReleaseError> {
        let mut stepper = session.stepper();
        let weight = state.weight.take(&self.path());
        stepper.stepping = true;
        let is_owner = session.is_owner(self.id());
        let from_owner = |weight| session.weight_from_owner(self.id(), weight);
        let (weight, taken) = match grad {
            None => (from_owner(weight)?, Taken::Stepped),
            Some(grad) => {
                let is_in_place = weight.can_mut() && is_owner;
                let path = self.path();
                let step = |weight, grad| {
                    let stepping = Stepping::begin(self, session);
                    let (weight, taken) =
                        (self.step)(&mut stepper, self.id(), &path, weight, grad, is_owner);
                    drop(stepping);
                    Ok::<_, ReleaseError>((from_owner(weight)?, taken))
                };
                let stepped = marks::step(weight, grad, step, |stepped| {
                    stepped.as_ref().ok().map(|(weight, _)| weight)
                })?;
                if is_in_place && stepped.1 == Taken::Stepped {
                    Progress::count(&session.progress.in_place);
                }
                stepped
            }
        };
        stepper.stepping = false;
        if taken == Taken::Stepped {
            Progress::count(&session.progress.stepped);
            state.sum = None;
        }
        state.weight = Weight::Bare(weight);
        state.phase = state.phase.after(taken);
        Ok(())
    }

    /// Takes the gradient of the hook on the model's tape, if there is one.
    pub(crate) fn remove_grad(&self, grads: &mut Gradients) -> Option<DispatchTensor> {
        match &self.state().weight {
            Weight::Hooked(hooked) => hooked.take_grad(grads),
            _ => None,
        }
    }

    fn is_at(&self, hook: NodeId) -> bool {
        matches!(&self.state().weight, Weight::Hooked(hooked) if hooked.id() == hook)
    }

    /// Registers the mark of a taken gradient under the leaf, for `GradientsParams::from_grads`.
    pub(crate) fn mark_taken(&self, grads: &mut Gradients) {
        let (leaf, mark) = (self.leaf_id(), self.state().mark.clone());
        register(grads, leaf, mark);
    }
}

impl HookOwner for Slot {
    fn complete(&self, hook: NodeId, grads: &mut Gradients, checkpointer: &Checkpointer) -> bool {
        if let Some(session) = self.session() {
            session.learn(hook, HookKey::on_model(self.id()), checkpointer);
        }
        if !self.is_at(hook) {
            // A scope has stepped the parameter, so this hook has no gradient.
            let phase = self.phase();
            return phase.is_taken() && !phase.has_ended();
        }
        // If there is none, only scopes use the parameter, and have left none.
        if let Some(grad) = self.remove_grad(grads) {
            match self.take_gradient(grad) {
                None => self.mark_taken(grads),
                Some(grad) => register(grads, self.leaf_id(), grad),
            }
        }
        true
    }
}

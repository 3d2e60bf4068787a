//! Ordinary gradients: those that backward has not stepped with.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;

use super::survey::{Survey, Surveyed};
use crate::backend::added;
use crate::error::ReleaseError;
use crate::session::Session;

/// Measures the ordinary gradients of a step, with the sums of earlier micro-batches and as the
/// mean over replicas.
pub(super) fn measure(
    session: &Session,
    survey: &Survey,
    grads: &GradientsParams,
) -> Result<(), ReleaseError> {
    let was_interrupted = survey.was_interrupted();
    for Surveyed { param, .. } in &survey.params {
        let slot = session.slots().get(&param.id).cloned();
        let is_taken = slot.as_ref().is_some_and(|slot| slot.phase().is_taken());
        if is_taken || session.stepper().gradients.is_measured(param.id) {
            continue;
        }
        // Of a model that is not armed, an optimizer that is gone may have left them.
        let left = survey.own_slot(param.id).filter(|_| !was_interrupted);
        let sum = slot.as_ref().or(left).and_then(|slot| slot.sum());
        let sum = sum.or_else(|| param.grad(&session.stepper().sums));
        let Some(grad) = added(sum, param.grad(grads)) else {
            continue;
        };
        let mean = match session.in_flight() {
            None => grad,
            Some(in_flight) => in_flight.mean(param.id, grad)?,
        };
        session.measure(param.id, mean);
    }
    Ok(())
}

/// Forgets the norms of ordinary gradients: the next call may bring others.
pub(super) fn forget(session: &Session) {
    let slots = session.slots();
    let is_taken = |param| {
        slots
            .get(&param)
            .is_some_and(|slot| slot.phase().is_taken())
    };
    session.stepper().gradients.keep_measured(is_taken);
}

/// Transforms the gradients for the step of a model that is no longer armed, and drops those of
/// parameters that another replica steps. Returns the parameters whose step is skipped.
pub(super) fn transform<M: Module>(
    session: &Session,
    model: &M,
    grads: &mut GradientsParams,
) -> HashSet<ParamId> {
    struct Transform<'a> {
        session: &'a Session,
        grads: &'a mut GradientsParams,
        seen: HashSet<ParamId>,
        skipped: HashSet<ParamId>,
    }
    impl ModuleVisitor for Transform<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let id = param.id;
            // Two parameters with one id have one gradient.
            if !self.seen.insert(id) {
                return;
            }
            let gradients = &mut self.session.stepper().gradients;
            let grad = self.grads.remove::<D>(id);
            let had_one = grad.is_some() || gradients.is_dropped(id);
            let grad = grad.and_then(|grad| gradients.apply(id, &param.base().inner(), grad));
            match grad {
                Some(grad) if self.session.is_owner(id) => self.grads.register(id, grad),
                Some(_) => {}
                None if had_one => {
                    self.skipped.insert(id);
                }
                None => {}
            }
        }
    }
    let mut transform = Transform {
        session,
        grads,
        seen: HashSet::new(),
        skipped: HashSet::new(),
    };
    model.visit(&mut transform);
    transform.skipped
}

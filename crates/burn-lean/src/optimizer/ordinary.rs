//! Ordinary gradients: those that backward has not stepped with.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;

use crate::error::ReleaseError;
use crate::reduction::InFlight;
use crate::session::Session;

/// Measures the ordinary gradients of a step, with the sums of earlier micro-batches and as the
/// mean over replicas. Returns the parameters of the model, in the order of its fields.
pub(super) fn measure<M: Module>(
    session: &Session,
    model: &M,
    grads: &GradientsParams,
) -> Result<Vec<ParamId>, ReleaseError> {
    struct NormVisitor<'a> {
        session: &'a Session,
        grads: &'a GradientsParams,
        params: Vec<ParamId>,
        error: Option<ReleaseError>,
    }
    impl ModuleVisitor for NormVisitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let id = param.id;
            self.params.push(id);
            let slot = self.session.slots().get(&id).cloned();
            let is_taken = slot.as_ref().is_some_and(|slot| slot.phase().is_taken());
            let is_measured = self.session.stepper().gradients.is_measured(id);
            if is_taken || is_measured || self.error.is_some() {
                return;
            }
            let sum = slot.and_then(|slot| slot.sum()).map(Tensor::from_dispatch);
            let sum = sum.or_else(|| self.session.stepper().sums.get::<D>(id));
            let Some(grad) = added(sum, self.grads.get::<D>(id)) else {
                return;
            };
            let mean = match self.session.in_flight() {
                None => Ok(Some(grad)),
                Some(in_flight) => mean(in_flight, id, grad),
            };
            match mean {
                Ok(Some(grad)) => self.session.stepper().gradients.measure(id, grad),
                Ok(None) => {}
                Err(error) => self.error = Some(error),
            }
        }
    }
    let mut measure = NormVisitor {
        session,
        grads,
        params: Vec::new(),
        error: None,
    };
    model.visit(&mut measure);
    measure.error.map_or(Ok(measure.params), Err)
}

fn mean<const D: usize>(
    in_flight: &InFlight,
    param: ParamId,
    grad: Tensor<D>,
) -> Result<Option<Tensor<D>>, ReleaseError> {
    let dims = grad.dims();
    let numbers = grad.shape().num_elements();
    let mean = in_flight.mean(param, grad.reshape([numbers]))?;
    Ok(mean.map(|mean| mean.reshape(dims)))
}

/// The result of [`transform`].
#[derive(Default)]
pub(super) struct Transformed {
    /// The parameters, in the order of the model's fields.
    pub(super) params: Vec<ParamId>,
    /// The parameters whose step is skipped.
    pub(super) skipped: HashSet<ParamId>,
}

/// Transforms the gradients for the step of a model that is no longer armed, and drops those of
/// parameters that another replica steps.
pub(super) fn transform<M: Module>(
    session: &Session,
    model: &M,
    grads: &mut GradientsParams,
) -> Transformed {
    struct Transform<'a> {
        session: &'a Session,
        grads: &'a mut GradientsParams,
        done: Transformed,
    }
    impl Transform<'_> {
        fn is_owner(&self, param: ParamId) -> bool {
            let reduction = self.session.in_flight().map(InFlight::reduction);
            reduction.is_none_or(|reduction| reduction.is_owner(param))
        }
    }
    impl ModuleVisitor for Transform<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let id = param.id;
            let gradients = &mut self.session.stepper().gradients;
            self.done.params.push(id);
            let grad = self.grads.remove::<D>(id);
            let had_one = grad.is_some() || (gradients.is_overflown() && gradients.is_measured(id));
            let grad = grad.and_then(|grad| gradients.apply(id, &param.base().inner(), grad));
            match grad {
                Some(grad) if self.is_owner(id) => self.grads.register(id, grad),
                Some(_) => {}
                None if had_one => {
                    self.done.skipped.insert(id);
                }
                None => {}
            }
        }
    }
    let has_owners = session
        .in_flight()
        .is_some_and(|in_flight| in_flight.reduction().is_sharded());
    if session.stepper().gradients.is_idle() && !has_owners {
        return Transformed::default();
    }
    let mut transform = Transform {
        session,
        grads,
        done: Transformed::default(),
    };
    model.visit(&mut transform);
    transform.done
}

/// The sum of the gradients that exist, the earlier one first.
pub(super) fn added<const D: usize>(
    sum: Option<Tensor<D>>,
    grad: Option<Tensor<D>>,
) -> Option<Tensor<D>> {
    match (sum, grad) {
        (Some(sum), Some(grad)) => Some(sum.add(grad)),
        (sum, grad) => sum.or(grad),
    }
}

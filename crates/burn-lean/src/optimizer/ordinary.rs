//! Ordinary gradients: those that no parameter was stepped with inside backward.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;

use crate::session::Session;

/// Measures the ordinary gradients of a step, with the sums of earlier micro-batches. Returns the
/// parameters of the model, in the order of its fields.
pub(super) fn measure<M: Module>(
    session: &Session,
    model: &M,
    grads: &GradientsParams,
) -> Vec<ParamId> {
    struct Measure<'a> {
        session: &'a Session,
        grads: &'a GradientsParams,
        params: Vec<ParamId>,
    }
    impl ModuleVisitor for Measure<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let id = param.id;
            self.params.push(id);
            let slot = self.session.slots().get(&id).cloned();
            let is_taken = slot.as_ref().is_some_and(|slot| slot.fate().taken);
            if is_taken || self.session.stepper().gradients.is_measured(id) {
                return;
            }
            let mut stepper = self.session.stepper();
            let sum = slot.and_then(|slot| slot.sum()).map(Tensor::from_dispatch);
            let sum = sum.or_else(|| stepper.sums.get::<D>(id));
            if let Some(grad) = added(sum, self.grads.get::<D>(id)) {
                stepper.gradients.measure(id, grad);
            }
        }
    }
    let mut measure = Measure {
        session,
        grads,
        params: Vec::new(),
    };
    model.visit(&mut measure);
    measure.params
}

/// What was done to the gradients of a model.
#[derive(Default)]
pub(super) struct Transformed {
    /// The parameters, in the order of the model's fields.
    pub(super) params: Vec<ParamId>,
    /// Those whose gradient was not one to step with.
    pub(super) skipped: HashSet<ParamId>,
}

/// Transforms the gradients that a model, which is not armed any more, is to be stepped with.
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
    impl ModuleVisitor for Transform<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let id = param.id;
            let gradients = &mut self.session.stepper().gradients;
            self.done.params.push(id);
            let grad = self.grads.remove::<D>(id);
            let had_one = grad.is_some() || (gradients.is_overflown() && gradients.is_measured(id));
            let grad = grad.and_then(|grad| gradients.apply(id, &param.base().inner(), grad));
            match grad {
                Some(grad) => self.grads.register(id, grad),
                None if had_one => {
                    self.done.skipped.insert(id);
                }
                None => {}
            }
        }
    }
    if session.stepper().gradients.is_idle() {
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

/// The sum of those that are there, the earlier one first.
pub(super) fn added<const D: usize>(
    sum: Option<Tensor<D>>,
    grad: Option<Tensor<D>>,
) -> Option<Tensor<D>> {
    match (sum, grad) {
        (Some(sum), Some(grad)) => Some(sum.add(grad)),
        (sum, grad) => sum.or(grad),
    }
}

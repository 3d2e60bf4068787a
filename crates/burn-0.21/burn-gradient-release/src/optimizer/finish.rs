//! Finishes the step that backward has begun.

use std::{collections::HashSet, sync::Arc};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, MultiGradientsParams, SimpleOptimizer, adaptor::GradAdaptor},
    tensor::{Tensor, backend::Backend},
};

use super::{
    arming::{check_foreign, slot_of},
    mark::{is_marked, mark},
    report::{Outcome, StepReport},
    session::{Session, is_awaited, leaf, sum},
    step_plan::{StepPlan, Stepping},
    stepper::from_float,
};
use crate::{
    ReleaseBackend,
    error::ReleaseError,
    groups::path_of,
    slot::reduction::{Recipients, agree},
    slot::{Claim, Slot, Step},
    tape::consumers::When,
};

/// The gradients given to `step`.
pub(super) trait Grads {
    /// Whether they come from several devices.
    fn is_multi(&self) -> bool;

    fn is_empty(&self) -> bool;

    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool {
        self.get::<B, D>(param).is_some()
    }

    /// A gradient; `None` if they come from several devices.
    fn get<B: Backend, const D: usize>(&self, param: ParamId) -> Option<Tensor<B, D>>;
}

impl Grads for GradientsParams {
    fn is_multi(&self) -> bool {
        false
    }

    fn is_empty(&self) -> bool {
        GradientsParams::is_empty(self)
    }

    fn get<B: Backend, const D: usize>(&self, param: ParamId) -> Option<Tensor<B, D>> {
        GradientsParams::get(self, param)
    }
}

impl Grads for MultiGradientsParams {
    fn is_multi(&self) -> bool {
        true
    }

    fn is_empty(&self) -> bool {
        self.grads.iter().all(|(grads, _)| grads.is_empty())
    }

    fn get<B: Backend, const D: usize>(&self, param: ParamId) -> Option<Tensor<B, D>> {
        let mut grads = self.grads.iter();
        grads.find_map(|(grads, _)| grads.get(param))
    }
}

/// Measures the gradients that no backward pass has measured.
pub(super) fn measure_rest<B: ReleaseBackend, M: AutodiffModule<B>>(
    session: Option<&Session<B::InnerBackend>>,
    plan: &StepPlan<B::InnerBackend>,
    model: &M,
    grads: &impl Grads,
) -> Result<Vec<ParamId>, ReleaseError> {
    struct Remaining<'a, B: Backend, G> {
        session: Option<&'a Session<B>>,
        plan: &'a StepPlan<B>,
        grads: &'a G,
        params: Vec<ParamId>,
        /// Measured here. A teacher that is not trained may have the id of its student.
        measured: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend, G: Grads> ModuleVisitor<B> for Remaining<'_, B::InnerBackend, G> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let id = param.id;
            let transform = &self.plan.transform;
            self.params.push(id);
            if self.error.is_some() || self.plan.is_frozen(id) {
                return;
            }
            if transform.is_measured(id) {
                let is_second = self.session.is_some() && param.is_require_grad();
                let is_second = is_second && !self.measured.contains(&id);
                if is_second && self.grads.contains::<B::InnerBackend, D>(id) {
                    self.error = Some(ReleaseError::MeasuredTwice { param: id });
                }
                return;
            }
            let held = self.session.and_then(|session| session.still_held::<D>(id));
            let Some(grad) = sum(held, self.grads.get(id)) else {
                return;
            };
            match self.plan.reduce::<D>(id, grad, Recipients::All) {
                Ok(grad) => {
                    self.measured.insert(id);
                    let grad = grad.into_iter();
                    grad.for_each(|grad| transform.measure(id, grad));
                }
                Err(error) => self.error = Some(error.into()),
            }
        }
    }

    let mut remaining = Remaining {
        session,
        plan,
        grads,
        params: Vec::new(),
        measured: HashSet::new(),
        error: None,
    };
    model.visit(&mut remaining);
    remaining.error.map_or(Ok(remaining.params), Err)
}

/// Why the step cannot be finished with this model and these gradients.
pub(super) fn check_finish<B: ReleaseBackend, M: AutodiffModule<B>>(
    session: Option<&Session<B::InnerBackend>>,
    model: &M,
    grads: &impl Grads,
) -> Result<(), ReleaseError> {
    struct Check<'a, B: ReleaseBackend, M, G> {
        session: Option<&'a Session<B::InnerBackend>>,
        plan: Option<&'a Arc<StepPlan<B::InnerBackend>>>,
        model: &'a M,
        grads: &'a G,
        found: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend, M: AutodiffModule<B>, G: Grads> ModuleVisitor<B> for Check<'_, B, M, G> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.error.is_some() {
                return;
            }
            if let (Some(session), Some(plan)) = (self.session, self.plan)
                && plan.wants_finite(param.id)
                && let Some(grad) = sum(session.still_held::<D>(param.id), self.grads.get(param.id))
            {
                self.error = match plan.admits(param.id, grad) {
                    Ok(true) => None,
                    Ok(false) => Some(session.non_finite(path_of::<B, M>(self.model, param.id))),
                    Err(error) => Some(error.into()),
                };
                if self.error.is_some() {
                    return;
                }
            }
            let is_frozen = self.plan.is_some_and(|plan| plan.is_frozen(param.id));
            let own = self
                .session
                .and_then(|session| session.slots.get(&param.id));
            // A sum is stepped with by its id.
            if own.is_some_and(|own| !own.has_acted()) {
                self.found.insert(param.id);
            }
            let Some(slot) = slot_of(param.val()) else {
                return;
            };
            if !own.is_some_and(|own| Arc::ptr_eq(own, &slot)) {
                self.error = check_stepped_elsewhere(&slot);
            } else if !is_frozen && slot.has_acted() {
                self.found.insert(param.id);
                if self.grads.contains::<B::InnerBackend, D>(param.id) {
                    self.error = Some(ReleaseError::AlreadyStepped { param: param.id });
                } else if slot.is_unclaimed() {
                    self.error = Some(ReleaseError::Unclaimed { param: param.id });
                }
            }
        }
    }

    let mut check = Check {
        session,
        plan: session.and_then(Session::plan),
        model,
        grads,
        found: HashSet::new(),
        error: None,
    };
    model.visit(&mut check);
    let Check {
        plan, found, error, ..
    } = check;
    if let Some(error) = error {
        return Err(error);
    }
    let is_frozen = |id| plan.is_some_and(|plan| plan.is_frozen(id));
    let mut slots = session.into_iter().flat_map(|session| &session.slots);
    let is_needed = |slot: &Slot<_>| slot.has_acted() || slot.held().is_some();
    match slots.find(|(id, slot)| is_needed(slot) && !is_frozen(**id) && !found.contains(*id)) {
        Some((param, _)) => Err(ReleaseError::WrongModel { param: *param }),
        None => Ok(()),
    }
}

/// The error if another session has stepped the parameter: its gradient is gone.
fn check_stepped_elsewhere<B: Backend>(slot: &Slot<B>) -> Option<ReleaseError> {
    let is_gone = slot.stepped().is_some() || slot.claim() == Claim::Abandoned;
    is_gone.then(|| check_foreign(slot)).flatten()
}

/// Finishes a step: promotes the parameters stepped inside backward, and applies the ordinary step
/// to those with a gradient, unless the whole step `is_skipped`. Without a session this is Burn's
/// own step.
pub(super) fn finish<O, M, B>(
    stepping: &Stepping<O, B>,
    is_skipped: bool,
    session: Option<Session<B::InnerBackend>>,
    model: M,
    grads: GradAdaptor,
) -> (StepReport, M)
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    struct Finish<'a, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend>,
        B: ReleaseBackend,
    {
        stepping: &'a Stepping<O, B>,
        is_skipped: bool,
        session: Option<Session<B::InnerBackend>>,
        grads: GradAdaptor,
        report: StepReport,
    }

    impl<O, B> Finish<'_, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        B: ReleaseBackend,
    {
        fn finish<const D: usize>(
            &mut self,
            id: ParamId,
            tensor: Tensor<B, D>,
        ) -> (Outcome, Tensor<B, D>) {
            let mut held = None;
            let slot = self.session.as_mut().and_then(|session| {
                held = session.held::<D>(id);
                let slot = session.slots.get(&id)?;
                // A parameter that is not trained may have the same id. As in Burn it takes a
                // gradient that is still there, but a slot that has used one is not its own.
                if slot.has_acted() {
                    slot_of(tensor.clone()).filter(|own| Arc::ptr_eq(own, slot))?;
                }
                session.slots.remove(&id)
            });
            let is_own = slot.is_some();
            let mut is_untouched = false;
            if let Some(slot) = slot {
                if let Some(when) = slot.stepped() {
                    drop(tensor);
                    let outcome = match when {
                        When::Complete => Outcome::Released,
                        When::Late => Outcome::ReleasedLate,
                    };
                    let value = from_float::<B::InnerBackend, D>(slot.close());
                    return (outcome, Tensor::from_inner(value).require_grad());
                }
                is_untouched = slot.is_untouched();
                held = slot.withdraw().map(from_float);
            }
            let (grad, device) = self.grads.remove::<B::InnerBackend, D>(id).unzip();
            // Gradients of several devices are added up on one that Burn chooses.
            if let Some(device) = device {
                held = held.map(|held| held.to_device(&device));
            }
            let grad = sum(held, grad);
            if self.stepping.plan.is_frozen(id) {
                return (Outcome::Frozen, leaf(tensor));
            }
            if is_untouched || (self.is_skipped && grad.is_some()) {
                return (Outcome::Skipped, leaf(tensor));
            }
            match grad {
                Some(grad) => {
                    let require_grad = tensor.is_require_grad();
                    let is_marked = is_marked(&tensor);
                    let plan = &self.stepping.plan;
                    let grad = agree(plan.reduce(id, grad, plan.recipients()));
                    let (outcome, tensor) = match self.stepping.step(id, tensor.inner(), grad) {
                        Step::Taken(tensor) => (Outcome::Ordinary, tensor),
                        Step::Skipped(tensor) | Step::Stopped(tensor) => (Outcome::Skipped, tensor),
                    };
                    let mut tensor = Tensor::from_inner(tensor).set_require_grad(require_grad);
                    if is_marked {
                        tensor = mark(id, tensor);
                    }
                    (outcome, tensor)
                }
                None if !is_own && is_awaited(&tensor) => (Outcome::Unused, tensor),
                None => (Outcome::Unused, leaf(tensor)),
            }
        }
    }

    impl<O, B> ModuleMapper<B> for Finish<'_, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        B: ReleaseBackend,
    {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            let trains = tensor.is_require_grad();
            let (outcome, tensor) = self.finish(id, tensor);
            if trains {
                self.report.push(id, outcome);
            }
            Param::from_mapped_value(id, tensor, mapper)
        }
    }

    let plan = &stepping.plan;
    let mut finish = Finish {
        stepping,
        is_skipped,
        session,
        grads,
        report: StepReport::new(plan.learning_rate, plan.other_rates()),
    };
    let model = model.map(&mut finish);
    let mut report = finish.report;
    if let Some(reduction) = &plan.reduction {
        agree(reduction.end_step(plan.learning_rate, &plan.other_rates()));
    }
    let has_skipped = is_skipped || report.count(Outcome::Skipped) > 0;
    let had_gradients = has_skipped || report.has_stepped();
    let params: Vec<_> = report.outcomes().map(|(param, _)| param).collect();
    report.gradients = plan.transform.finish(params, has_skipped, had_gradients);
    (report, model)
}

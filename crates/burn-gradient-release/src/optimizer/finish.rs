//! Finishing the step that backward has begun.

use std::{collections::HashSet, sync::Arc};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, SimpleOptimizer, adaptor::GradAdaptor,
    },
    tensor::{Tensor, backend::Backend},
};

use super::{
    arming::{check_foreign, slot_of},
    error::ReleaseError,
    report::{Outcome, StepReport},
    session::{Session, is_awaited, leaf, sum},
    stepper::{Stepper, from_float},
};
use crate::{
    ReleaseBackend,
    slot::{Claim, Slot},
    uses::When,
};

/// The gradients given to `step`.
pub(super) trait Grads {
    /// Whether they are those of several devices.
    fn is_multi(&self) -> bool;

    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool;
}

impl Grads for GradientsParams {
    fn is_multi(&self) -> bool {
        false
    }

    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool {
        self.get::<B, D>(param).is_some()
    }
}

impl Grads for MultiGradientsParams {
    fn is_multi(&self) -> bool {
        true
    }

    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool {
        let mut grads = self.grads.iter();
        grads.any(|(grads, _)| grads.contains::<B, D>(param))
    }
}

/// Why the step cannot be finished with this model and these gradients.
pub(super) fn check_finish<B: ReleaseBackend, M: AutodiffModule<B>>(
    session: Option<&Session<B::InnerBackend>>,
    model: &M,
    grads: &impl Grads,
) -> Result<(), ReleaseError> {
    struct Check<'a, B: Backend, G> {
        session: Option<&'a Session<B>>,
        grads: &'a G,
        found: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend, G: Grads> ModuleVisitor<B> for Check<'_, B::InnerBackend, G> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.error.is_some() {
                return;
            }
            let Some(slot) = slot_of::<B, D>(param) else {
                return;
            };
            let own = self
                .session
                .and_then(|session| session.slots.get(&param.id));
            if !own.is_some_and(|own| Arc::ptr_eq(own, &slot)) {
                self.error = check_stepped_elsewhere(&slot);
            } else if slot.stepped().is_some() {
                self.found.insert(param.id);
                if slot.is_unclaimed() {
                    self.error = Some(ReleaseError::Unclaimed { param: param.id });
                } else if self.grads.contains::<B::InnerBackend, D>(param.id) {
                    self.error = Some(ReleaseError::AlreadyStepped { param: param.id });
                }
            }
        }
    }

    let mut check = Check {
        session,
        grads,
        found: HashSet::new(),
        error: None,
    };
    model.visit(&mut check);
    let Check { found, error, .. } = check;
    if let Some(error) = error {
        return Err(error);
    }
    let mut slots = session.into_iter().flat_map(|session| &session.slots);
    match slots.find(|(id, slot)| slot.stepped().is_some() && !found.contains(*id)) {
        Some((param, _)) => Err(ReleaseError::WrongModel { param: *param }),
        None => Ok(()),
    }
}

/// Why a parameter of another session stands in the way: its gradient is gone.
fn check_stepped_elsewhere<B: Backend>(slot: &Slot<B>) -> Option<ReleaseError> {
    let is_gone = slot.stepped().is_some() || slot.claim() == Claim::Abandoned;
    is_gone.then(|| check_foreign(slot)).flatten()
}

/// Finishes a step: promotes what was stepped inside backward, applies the ordinary step to what
/// has a gradient. Without a session that is Burn's own step.
pub(super) fn finish<O, M, B>(
    stepper: &Stepper<O, B>,
    learning_rate: LearningRate,
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
        stepper: &'a Stepper<O, B>,
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
                session.slots.remove(&id)
            });
            let is_own = slot.is_some();
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
                held = slot.withdraw().map(from_float);
            }
            let grad = self.grads.remove::<B::InnerBackend, D>(id);
            match sum(held, grad.map(|(grad, _device)| grad)) {
                Some(grad) => {
                    let require_grad = tensor.is_require_grad();
                    let lr = self.report.learning_rate();
                    let tensor = self.stepper.step(lr, id, tensor.inner(), grad);
                    let tensor = Tensor::from_inner(tensor).set_require_grad(require_grad);
                    (Outcome::Ordinary, tensor)
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

    let mut finish = Finish {
        stepper,
        session,
        grads,
        report: StepReport::new(learning_rate),
    };
    let model = model.map(&mut finish);
    (finish.report, model)
}

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
    error::ReleaseError,
    report::{Outcome, StepReport},
    session::{DepthHints, Session, disarmed, float, sum},
    stepper::{Stepper, from_float},
};
use crate::{ReleaseBackend, slot::When, tensor::ReleaseTensor};

/// The gradients given to `step`.
pub(super) enum Grads {
    /// Of one device.
    Single(GradientsParams),
    /// Of several devices.
    Multi(MultiGradientsParams),
}

impl Grads {
    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool {
        match self {
            Self::Single(grads) => grads.get::<B, D>(param).is_some(),
            Self::Multi(multi) => multi
                .grads
                .iter()
                .any(|(grads, _)| grads.get::<B, D>(param).is_some()),
        }
    }
}

impl From<Grads> for GradAdaptor {
    fn from(grads: Grads) -> Self {
        match grads {
            Grads::Single(grads) => grads.into(),
            Grads::Multi(grads) => grads.into(),
        }
    }
}

/// Why the step of an armed model cannot be finished with this model and these gradients.
pub(super) fn check_finish<B: ReleaseBackend, M: AutodiffModule<B>>(
    session: &Session<B::InnerBackend>,
    model: &M,
    grads: &Grads,
) -> Result<(), ReleaseError> {
    struct Check<'a, B: Backend> {
        session: &'a Session<B>,
        grads: &'a Grads,
        found: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend> ModuleVisitor<B> for Check<'_, B::InnerBackend> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let slot = match self.session.slots.get(&param.id) {
                Some(slot) if slot.acted().is_some() => slot,
                _ => return,
            };
            let is_of_slot = float(param.val())
                .and_then(|tensor: ReleaseTensor<B::InnerBackend>| tensor.snapshot())
                .and_then(|snapshot| snapshot.slot.upgrade())
                .is_some_and(|found| Arc::ptr_eq(&found, slot));
            if !is_of_slot {
                return;
            }
            self.found.insert(param.id);
            if slot.is_unclaimed() {
                self.error = Some(ReleaseError::Unclaimed { param: param.id });
            }
            if self.grads.contains::<B::InnerBackend, D>(param.id) {
                self.error = Some(ReleaseError::AlreadyStepped { param: param.id });
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
    let lost = session
        .slots
        .iter()
        .find(|(id, slot)| slot.acted().is_some() && !found.contains(*id));
    match lost {
        Some((param, _)) => Err(ReleaseError::WrongModel { param: *param }),
        None => Ok(()),
    }
}

/// Finishes a step: promotes what was stepped inside backward, applies the ordinary step to what
/// has a gradient. Without a session that is Burn's own step.
pub(super) fn finish<O, M, B>(
    stepper: &Stepper<O, B>,
    hints: &mut DepthHints,
    learning_rate: LearningRate,
    session: Option<Session<B::InnerBackend>>,
    model: M,
    grads: Grads,
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
        hints: &'a mut DepthHints,
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
                held = session.held.remove::<B::InnerBackend, D>(id);
                session.remove(id, self.hints)
            });
            if let Some(slot) = slot {
                if let Some(when) = slot.acted() {
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
                None => (Outcome::Unused, disarmed(tensor)),
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
        hints,
        session,
        grads: grads.into(),
        report: StepReport::new(learning_rate),
    };
    let model = model.map(&mut finish);
    (finish.report, model)
}

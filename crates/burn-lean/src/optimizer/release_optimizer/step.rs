//! Finishing the step that backward has begun.

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;

use super::ReleaseOptimizer;
use crate::armed_slot::Taken;
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::Stop;
use crate::groups::path_of;
use crate::optimizer::claims::check_claims;
use crate::optimizer::ordinary::added;
use crate::optimizer::reducing::{reduce, weights_from_owners};
use crate::optimizer::report::{Outcome, StepReport};
use crate::optimizer::restoring::restore;
use crate::optimizer::survey::Survey;
use crate::optimizer::{arming, ordinary};
use crate::path::path_text;
use crate::session::{Progress, Session};

impl ReleaseOptimizer {
    /// Finishes the step: makes ordinary parameters of those that were stepped inside backward, and
    /// steps the parameters that have an ordinary gradient. Steps a model that is not armed like
    /// Burn's optimizer.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_step`](Self::try_step) returns.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> M {
        expect(self.try_step(lr, model, grads))
    }

    /// [`step`](Self::step), handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`LearningRate`](ReleaseError::LearningRate): not the rate that `arm` was given;
    /// - [`AlreadyStepped`](ReleaseError::AlreadyStepped): a gradient for a parameter that was
    ///   stepped inside an earlier backward;
    /// - [`Taken`](ReleaseError::Taken): a gradient of an earlier backward, which was taken there;
    /// - [`Abandoned`](ReleaseError::Abandoned): another optimizer has left the model in mid-step;
    /// - [`Unclaimed`](ReleaseError::Unclaimed): `grads` lacks the gradient of a parameter that was
    ///   stepped;
    /// - [`WrongModel`](ReleaseError::WrongModel), [`Copy`](ReleaseError::Copy): the stepped
    ///   parameters are not in this model;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere): another optimizer or accumulator has
    ///   armed a parameter;
    /// - [`Interrupted`](ReleaseError::Interrupted): the optimizer panicked half way;
    /// - [`NonFinite`](ReleaseError::NonFinite): a gradient is not finite, where that stops a step;
    /// - [`OnlyMeasured`](ReleaseError::OnlyMeasured): the model is armed to measure;
    /// - [`NotScaled`](ReleaseError::NotScaled): no loss was scaled for a
    ///   [`LossScaler`](crate::LossScaler);
    /// - [`NotMeasured`](ReleaseError::NotMeasured): clipping by the global norm was asked for when
    ///   the model was armed;
    /// - [`Reduction`](ReleaseError::Reduction): the replicas of the model do not do the same. The
    ///   model is half old, half new;
    /// - [`OutOfRange`](ReleaseError::OutOfRange),
    ///   [`HalfPrecision`](ReleaseError::HalfPrecision), [`EmptyGroup`](ReleaseError::EmptyGroup):
    ///   as for [`try_arm`](Self::try_arm).
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        mut grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let lr = lr.into();
        let survey = Survey::of(&model);
        let reduced = self.session.wait_for_reductions();
        if let Err(error) = reduced.and_then(|()| self.check_step(&lr, &model, &grads, &survey)) {
            return Err(Refused::with_grads(model, grads, error));
        }
        let model = match self.is_armed() || survey.has_adapters || survey.found.is_empty() {
            true => model,
            // An accumulator, or an optimizer that is gone, has left the model in this state.
            false => {
                let sums = arming::sums_left(&model, &survey);
                if !sums.is_empty() {
                    self.session.stepper().sums = sums;
                }
                arming::settle(model, &survey)
            }
        };
        let mut report = self.report(&model, &mut grads);
        let reduced = match self.session.in_flight() {
            Some(in_flight) => {
                let recipients = self.session.stepper().gradients.recipients();
                reduce(in_flight, &model, recipients, &mut grads)
            }
            None => Ok(Vec::new()),
        };
        let reduced = match reduced {
            Ok(reduced) => reduced,
            Err(error) => return Err(Refused::with_grads(model, grads, error)),
        };
        let mut model = restore(&self.session, model, survey.has_adapters);
        let ordinary::Transformed { params, skipped } =
            ordinary::transform(&self.session, &model, &mut grads);
        report.set_skipped(&skipped);
        let has_skipped = !skipped.is_empty() || report.count(Outcome::Skipped) > 0;
        let mut stepper = self.session.stepper();
        report.gradients = stepper.gradients.end_step(&params, has_skipped);
        drop(stepper);
        self.finish(report);
        if !grads.is_empty() {
            let mut stepper = self.session.stepper();
            model = stepper.step(|optim| optim.step(lr.clone(), model, grads));
        }
        if let Some(in_flight) = self.session.in_flight() {
            let ended = weights_from_owners(in_flight, model, &reduced).and_then(|model| {
                match in_flight.end_step(&lr) {
                    Ok(()) => Ok(model),
                    Err(error) => Err((model, error)),
                }
            });
            model = match ended {
                Ok(model) => model,
                Err((model, error)) => {
                    return Err(Refused::with_grads(model, GradientsParams::new(), error));
                }
            };
        }
        Ok(model)
    }

    /// Makes the report of the step. `grads` keeps the gradients that are not stepped with yet.
    pub(in crate::optimizer) fn report<M: Module>(
        &self,
        model: &M,
        grads: &mut GradientsParams,
    ) -> StepReport {
        let mut stepper = self.session.stepper();
        let measured = stepper.gradients.measured();
        let sums = std::mem::take(&mut stepper.sums);
        drop(stepper);
        let mut report = StepReport {
            in_place: Progress::get(&self.session.progress.in_place),
            is_plain: self.session.is_plain() && measured.is_none_or(|norm| norm.is_plain),
            ..StepReport::default()
        };
        model.visit(&mut Finish {
            session: &self.session,
            grads,
            sums,
            report: &mut report,
        });
        report
    }

    /// Ends the step, after the model was restored.
    pub(in crate::optimizer) fn finish(&mut self, report: StepReport) {
        self.session.progress.reset();
        self.session.stepper().lr = None;
        self.is_fresh &= report
            .outcomes
            .iter()
            .all(|(_, outcome)| matches!(outcome, Outcome::Unused | Outcome::Skipped));
        self.last_step = Some(Box::new(report));
    }

    pub(in crate::optimizer) fn check_step<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        model: &M,
        grads: &GradientsParams,
        survey: &Survey,
    ) -> Result<(), ReleaseError> {
        let stepper = self.session.stepper();
        let slots = self.session.slots();
        let stepped = Progress::get(&self.session.progress.stepped);
        let armed = slots.len();
        if stepper.stepping {
            return Err(ReleaseError::Interrupted { stepped, armed });
        }
        match stepper.gradients.stop() {
            Some(Stop::NonFinite(param)) => {
                let path = path_of(model, param);
                return Err(ReleaseError::NonFinite {
                    path,
                    stepped,
                    armed,
                });
            }
            Some(Stop::NotScaled) => return Err(ReleaseError::NotScaled),
            Some(Stop::NotMeasured) => return Err(ReleaseError::NotMeasured),
            None => {}
        }
        if stepper.gradients.is_measuring() {
            // The measuring pass leaves no gradients.
            let is_overflown = stepper.gradients.is_overflown();
            drop((slots, stepper));
            return match is_overflown {
                true => survey.check_own(&self.session, |_| true),
                false => Err(ReleaseError::OnlyMeasured),
            };
        }
        for (id, slot) in slots.iter() {
            let path = path_text(slot.path());
            if let Some(armed) = &stepper.lr {
                let armed = armed.lr_from_param(*id, Some(&path));
                let given = lr.lr_from_param(*id, Some(&path));
                if armed.to_bits() != given.to_bits() {
                    return Err(ReleaseError::LearningRate { path, armed, given });
                }
            }
            if slot.phase().is_taken_twice() {
                return Err(ReleaseError::AlreadyStepped { path });
            }
        }
        drop((slots, stepper));
        survey.check_abandoned(&self.session)?;
        survey.check_elsewhere(&self.session)?;
        survey.check_bare(|id| self.session.slots().contains_key(id))?;
        survey.check_rates(lr)?;
        self.check_settings(model, survey)?;
        survey.check_own(&self.session, |slot| slot.phase().is_taken())?;
        check_claims(&self.session, survey, model, grads)?;
        self.check_ordinary(model, grads)
    }

    /// Checks the gradients that backward has not stepped with, if a gradient transform needs it.
    fn check_ordinary<M: Module>(
        &self,
        model: &M,
        grads: &GradientsParams,
    ) -> Result<(), ReleaseError> {
        let stepper = self.session.stepper();
        if stepper.gradients.lacks_scale() && !grads.is_empty() {
            return Err(ReleaseError::NotScaled);
        }
        if !stepper.gradients.looks_at_ordinary() {
            return Ok(());
        }
        drop(stepper);
        let params = ordinary::measure(&self.session, model, grads)?;
        let slots = self.session.slots();
        let is_whole = !slots.values().any(|slot| slot.phase().is_taken());
        let armed = slots.len();
        drop(slots);
        let gradients = &mut self.session.stepper().gradients;
        let ended = gradients.end_ordinary(&params, is_whole);
        ended.map_err(|param| ReleaseError::NonFinite {
            path: path_of(model, param),
            stepped: Progress::get(&self.session.progress.stepped),
            armed,
        })
    }
}

/// Removes the gradients that were stepped with, and reports the outcome for each parameter.
struct Finish<'a> {
    session: &'a Session,
    grads: &'a mut GradientsParams,
    /// Sums of earlier micro-batches of parameters that are not armed.
    sums: GradientsParams,
    report: &'a mut StepReport,
}
impl ModuleVisitor for Finish<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let id: ParamId = param.id;
        let slot = self.session.slots().get(&id).cloned();
        // A parameter that was frozen since is still stepped, also with sums from before.
        let has_sum = self.sums.get::<D>(id).is_some();
        if slot.is_none() && !param.is_require_grad() && !has_sum {
            return;
        }
        let taken = slot.as_ref().and_then(|slot| slot.phase().taken());
        if let (Some(slot), Some(taken)) = (&slot, taken) {
            self.grads.remove::<D>(id);
            let outcome = match taken {
                Taken::Skipped => Outcome::Skipped,
                _ if slot.is_late() => Outcome::ReleasedLate,
                _ => Outcome::Released,
            };
            self.report.outcomes.push((id, outcome));
            return;
        }
        let sum = slot.and_then(|slot| slot.take_sum());
        let sum = sum.map(Tensor::from_dispatch);
        let sum = sum.or_else(|| self.sums.remove::<D>(id));
        let grad = added(sum, self.grads.remove::<D>(id));
        let outcome = if grad.is_some() {
            Outcome::Ordinary
        } else {
            Outcome::Unused
        };
        if let Some(grad) = grad {
            self.grads.register(id, grad);
        }
        self.report.outcomes.push((id, outcome));
    }
}

//! Finishing the step that backward has begun.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::ReleaseOptimizer;
use crate::backend::added;
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::Stop;
use crate::optimizer::claims::check_claims;
use crate::optimizer::reducing::{reduce, weights_from_owners};
use crate::optimizer::report::{Outcome, StepReport};
use crate::optimizer::restoring::restore;
use crate::optimizer::survey::{Survey, Surveyed, check_outside_of_scopes};
use crate::optimizer::{arming, ordinary};
use crate::path::path_text;
use crate::session::{Progress, Taken};

impl ReleaseOptimizer {
    /// Finishes the step: makes ordinary parameters of those that were stepped inside backward, and
    /// steps the parameters that have an ordinary gradient. Steps a model that is not armed like
    /// Burn's optimizer.
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
    /// A [`ReleaseError`] if the rate, the model or the gradients are not those of the backward
    /// that has stepped, a gradient is not finite where that stops a step, or no step can be taken
    /// with these settings. After [`Reduction`](ReleaseError::Reduction), where the replicas of the
    /// model do not do the same, the model is half old, half new.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        mut grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let lr = lr.into();
        let survey = Survey::of(&model);
        let reduced = self.session.wait_for_reductions();
        let of_others = self.take_sums_of_others(&survey);
        if let Err(error) = reduced.and_then(|()| self.check_step(&lr, &model, &grads, &survey)) {
            if !of_others.is_empty() {
                self.session.stepper().sums = of_others;
            }
            return Err(Refused::with_grads(model, grads, error));
        }
        let model = match self.is_armed() || survey.found.is_empty() {
            true => model,
            // An accumulator, or an optimizer that is gone, has left the model in this state.
            false => {
                let sums = arming::take_sums(&self.session, &survey);
                self.session.stepper().sums = sums;
                match survey.has_adapters {
                    true => model,
                    false => arming::settle(model, &survey),
                }
            }
        };
        let mut report = self.report(&survey, &mut grads);
        self.note_in_f32(&survey, &grads);
        let reduced = match self.session.in_flight() {
            Some(in_flight) => {
                let recipients = self.session.stepper().gradients.recipients();
                reduce(in_flight, &survey, recipients, &mut grads)
            }
            None => Ok(Vec::new()),
        };
        let reduced = match reduced {
            Ok(reduced) => reduced,
            Err(error) => return Err(Refused::with_grads(model, grads, error)),
        };
        let means = reduced.iter().copied();
        self.session.stepper().gradients.note_widened(means);
        let mut model = restore(&self.session, model, &survey);
        let skipped = ordinary::transform(&self.session, &model, &mut grads);
        report.set_skipped(&skipped);
        let has_skipped = !skipped.is_empty() || report.count(Outcome::Skipped) > 0;
        let mut stepper = self.session.stepper();
        let gradients = &mut stepper.gradients;
        report.gradients = gradients.end_step(&survey.ids(), report.stepped(), has_skipped);
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

    /// Notes the gradients in f32, such as sums, that the optimizer gets in the type of the weight.
    fn note_in_f32(&self, survey: &Survey, grads: &GradientsParams) {
        let stepper = &mut *self.session.stepper();
        if let Some(optim) = &stepper.optim {
            let without = survey.without_f32(optim, grads);
            stepper.gradients.note_widened(without);
        }
    }

    /// Makes the report of the step. `grads` keeps the gradients that are not stepped with yet.
    pub(in crate::optimizer) fn report(
        &self,
        survey: &Survey,
        grads: &mut GradientsParams,
    ) -> StepReport {
        let mut stepper = self.session.stepper();
        let measured = stepper.gradients.measured();
        // Sums of earlier micro-batches of parameters that are not armed.
        let mut sums = std::mem::take(&mut stepper.sums);
        let sums_are_plain = stepper.sums_are_plain;
        drop(stepper);
        let mut outcomes = Vec::new();
        let mut summed = Vec::new();
        for Surveyed { param, .. } in &survey.params {
            let slot = self.session.slots().get(&param.id).cloned();
            let left = param.take_grad(&mut sums);
            // A parameter that was frozen since is still stepped, also with sums from before.
            if slot.is_none() && !param.is_trained && left.is_none() {
                continue;
            }
            let grad = param.take_grad(grads);
            let taken = slot.as_ref().and_then(|slot| slot.phase().taken());
            let outcome = match (taken, &slot) {
                (Some(Taken::Skipped), _) => Outcome::Skipped,
                (Some(_), Some(slot)) if slot.is_late() => Outcome::ReleasedLate,
                (Some(_), _) => Outcome::Released,
                (None, _) => {
                    let sum = slot.and_then(|slot| slot.take_sum()).or(left);
                    summed.extend(sum.is_some().then_some(param.id));
                    match added(sum, grad) {
                        Some(grad) => {
                            param.put_grad(grads, grad);
                            Outcome::Ordinary
                        }
                        None => Outcome::Unused,
                    }
                }
            };
            outcomes.push((param.id, outcome));
        }
        self.session.stepper().gradients.note_widened(summed);
        StepReport {
            outcomes,
            in_place: Progress::get(&self.session.progress.in_place),
            is_plain: self.session.orders().is_plain()
                && measured.is_none_or(|norm| norm.is_plain)
                && sums_are_plain
                && survey.has_plain_sums(),
            ..StepReport::default()
        }
    }

    /// Ends the step, after the model was restored.
    pub(in crate::optimizer) fn finish(&mut self, report: StepReport) {
        self.session.progress.reset();
        let mut stepper = self.session.stepper();
        stepper.lr = None;
        stepper.sums_are_plain = true;
        drop(stepper);
        if report.stepped().next().is_some() {
            self.is_fresh = Some(false);
        }
        self.last_step = Some(Box::new(report));
    }

    pub(in crate::optimizer) fn check_step<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        model: &M,
        grads: &GradientsParams,
        survey: &Survey,
    ) -> Result<(), ReleaseError> {
        check_outside_of_scopes()?;
        let stepper = self.session.stepper();
        let slots = self.session.slots();
        let stepped = Progress::get(&self.session.progress.stepped);
        let armed = slots.len();
        if stepper.stepping {
            return Err(ReleaseError::Interrupted { stepped, armed });
        }
        match stepper.gradients.stop() {
            Some(Stop::NonFinite(param)) => {
                let path = survey.path_of(*param);
                return Err(ReleaseError::NonFinite {
                    path,
                    stepped,
                    armed,
                });
            }
            Some(Stop::Refused(error)) => return Err(error.clone()),
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
            let path = path_text(&slot.path());
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
        if armed > 0 {
            survey.check_duplicate()?;
            survey.check_lost(&self.session, model)?;
        }
        survey.check_abandoned(&self.session)?;
        survey.check_elsewhere(&self.session)?;
        survey.check_bare(|id| self.session.slots().contains_key(id))?;
        survey.check_rates(lr)?;
        self.check_settings(model, survey)?;
        survey.check_own(&self.session, |slot| slot.phase().is_taken())?;
        check_claims(&self.session, survey, grads)?;
        self.check_ordinary(survey, grads)
    }

    /// Checks the gradients that backward has not stepped with, if a gradient transform needs it.
    fn check_ordinary(&self, survey: &Survey, grads: &GradientsParams) -> Result<(), ReleaseError> {
        let stepper = self.session.stepper();
        let slots = self.session.slots();
        let has_sums = stepper.gradients.has_sums() || !stepper.sums.is_empty();
        if !grads.is_empty() || has_sums || survey.has_sums() {
            stepper.gradients.check_scaled()?;
        }
        let is_taken = |id| slots.get(&id).is_some_and(|slot| slot.phase().is_taken());
        let is_unmeasured = |surveyed: &Surveyed| {
            let param = &surveyed.param;
            let is_unmeasured = stepper.gradients.is_unmeasured(param.id);
            is_unmeasured && !is_taken(param.id) && param.grad(grads).is_some()
        };
        if survey.params.iter().any(is_unmeasured) {
            return Err(ReleaseError::NotMeasured);
        }
        if !stepper.gradients.looks_at_ordinary() {
            return Ok(());
        }
        let has_taken = slots.values().any(|slot| slot.phase().is_taken());
        if has_taken && stepper.gradients.needs_two_passes() {
            return Err(ReleaseError::NotMeasured);
        }
        let armed = slots.len();
        drop((slots, stepper));
        let measured = ordinary::measure(&self.session, survey, grads).and_then(|()| {
            let gradients = &mut self.session.stepper().gradients;
            let ended = gradients.end_ordinary(&survey.ids(), !has_taken);
            ended.map_err(|param| ReleaseError::NonFinite {
                path: survey.path_of(param),
                stepped: Progress::get(&self.session.progress.stepped),
                armed,
            })
        });
        if measured.is_err() {
            ordinary::forget(&self.session);
        }
        measured
    }
}

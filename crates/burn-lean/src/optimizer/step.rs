//! Steps: inside backward, and with ordinary gradients.

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::checks::{Checked, Survey};
use super::part::sealed::Run;
use super::report::{Outcome, StepReport};
use super::{HERE, ReleaseOptimizer, try_backward};
use crate::backend::added;
use crate::error::{Refused, ReleaseError, expect};
use crate::groups::check_groups;
use crate::recompute::check_outside_of_scopes;

impl ReleaseOptimizer {
    /// Runs backward from the loss, and steps each parameter of the model in it, the moment its
    /// gradient is complete. Returns the model with its new weights.
    ///
    /// It is `loss.backward()`, `GradientsParams::from_grads` and `optim.step` of Burn in one call.
    /// A parameter without a gradient does not change, and neither does a frozen one. `lr` is a
    /// number, or a [`ModuleLearningRate`] with rates for groups of parameters. The gradients of
    /// earlier micro-batches ([`accumulate`](Self::accumulate)) are stepped with, too.
    ///
    /// For several optimizers, and for gradients of what is in no model, see [`backward()`].
    ///
    /// [`backward()`]: crate::backward
    pub fn backward<M: Module, const D: usize>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        loss: Tensor<D>,
        model: M,
    ) -> M {
        expect(
            self.try_backward(lr, loss, model)
                .map_err(ReleaseError::from),
        )
    }

    /// [`backward`](Self::backward), handing back where it refuses: the model, and the loss if backward
    /// has not run.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`]. If the loss is handed back, nothing has changed, and neither has it if the
    /// error says that no parameter was stepped; else load the last checkpoint into the model and the
    /// optimizer.
    pub fn try_backward<M: Module, const D: usize>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        loss: Tensor<D>,
        model: M,
    ) -> Result<M, Refused<M, Option<Tensor<D>>>> {
        try_backward(loss, self.stepping(lr, model)).map(|(model, _)| model)
    }

    /// Burn's own step, with gradients that exist already, and with those of earlier micro-batches:
    /// `GradientsParams::new()` steps with the latter alone, as at the end of the data. All settings
    /// apply, and no norm has to be measured before.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> M {
        expect(self.try_step(lr, model, grads).map_err(ReleaseError::from))
    }

    /// [`step`](Self::step), handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`]. The gradients are handed back if nothing has changed.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        mut grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let lr = lr.into();
        let survey = match self.check_ordinary(&lr, &model, &grads) {
            Ok(survey) => survey,
            Err(error) => return Err(Refused::with_grads(model, grads, error)),
        };
        let is_overflown = match self.look_ahead(&survey, &grads) {
            Ok(is_overflown) => is_overflown,
            Err(error) => return Err(Refused::with_grads(model, grads, error)),
        };
        let mut all = std::mem::take(&mut self.sums);
        for Checked { param, .. } in &survey.params {
            let grad = param.take_grad(&mut grads);
            if let Some(grad) = added(all.remove(&param.id), grad) {
                all.insert(param.id, grad);
            }
        }
        if is_overflown {
            let outcome = |it: &Checked| match all.contains_key(&it.param.id) {
                true => Some((it.param.id, Outcome::Skipped)),
                false => it
                    .param
                    .is_trained
                    .then_some((it.param.id, Outcome::Unused)),
            };
            let outcomes = survey.params.iter().filter_map(outcome).collect();
            self.skip_step(outcomes);
            return Ok(model);
        }
        let mut stepping = self.stepping(lr, model);
        stepping.begin_ordinary(survey, all);
        match stepping.end() {
            Ok(()) => Ok(stepping.output()),
            Err(error) => {
                let model = stepping.give_back();
                Err(Refused::with_grads(model, GradientsParams::new(), error))
            }
        }
    }

    /// What has to hold before a pass over a model begins.
    pub(super) fn check<M: Module>(&self, model: &M) -> Result<Survey, ReleaseError> {
        self.check_whole()?;
        let stepper = self.stepper();
        if let Some(in_flight) = &stepper.in_flight {
            in_flight.check()?;
        }
        let survey = Survey::of(model)?;
        stepper.pipeline.check_settings()?;
        check_groups(model, &self.groups)?;
        match self.sums.keys().find(|id| !survey.has(**id)) {
            Some(id) => Err(ReleaseError::WrongModel {
                path: survey.path_of(*id),
            }),
            None => Ok(survey),
        }
    }

    /// What has to hold before a model is stepped.
    pub(super) fn check_steps(&mut self, survey: &Survey) -> Result<(), ReleaseError> {
        let stepper = self.stepper.as_ref().expect(HERE);
        survey.check_optimizer(stepper, &mut self.asked)
    }

    fn check_ordinary<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        model: &M,
        grads: &GradientsParams,
    ) -> Result<Survey, ReleaseError> {
        check_outside_of_scopes()?;
        let survey = self.check(model)?;
        survey.check_rates(lr)?;
        self.check_steps(&survey)?;
        let has_sums = !self.sums.is_empty();
        let pipeline = &self.stepper().pipeline;
        pipeline.check_scaled(has_sums, !grads.is_empty())?;
        Ok(survey)
    }

    /// Measures all gradients, if a setting needs that before anything changes. Returns whether one has
    /// overflowed.
    fn look_ahead(
        &mut self,
        survey: &Survey,
        grads: &GradientsParams,
    ) -> Result<bool, ReleaseError> {
        let stepper = self.stepper.as_mut().expect(HERE);
        // The norms are those of other gradients.
        stepper.pipeline.forget_measured();
        if !stepper.pipeline.looks_ahead() {
            return Ok(false);
        }
        let mut has_gradients = false;
        for Checked { param, .. } in &survey.params {
            let sum = self.sums.get(&param.id).cloned();
            let Some(grad) = added(sum, param.grad(grads)) else {
                continue;
            };
            let grad = match &stepper.in_flight {
                Some(in_flight) => in_flight.mean(param.id, grad)?,
                None => grad,
            };
            has_gradients = true;
            // Any rank will do.
            stepper
                .pipeline
                .measure(param.id, Tensor::from_dispatch(grad));
        }
        if !has_gradients {
            return Ok(false);
        }
        let measured = stepper.pipeline.end_measuring(&survey.ids());
        let measured = measured.map_err(|param| ReleaseError::NonFinite {
            path: survey.path_of(param),
            stepped: 0,
            of: survey.params.len(),
        })?;
        Ok(!measured.is_finite())
    }

    /// Ends a step that is not taken, because a gradient has overflowed.
    pub(super) fn skip_step(&mut self, outcomes: Vec<(ParamId, Outcome)>) {
        let report = StepReport {
            outcomes,
            late: Vec::new(),
            in_place: 0,
            gradients: self.stepper_mut().pipeline.skip_step(),
        };
        self.report(report);
    }

    fn report(&mut self, report: StepReport) {
        #[cfg(feature = "tracing")]
        report.trace();
        self.last_step = Some(Box::new(report));
    }

    pub(super) fn end_step(
        &mut self,
        mut report: StepReport,
        params: &[ParamId],
        lr: &ModuleLearningRate,
    ) -> Result<(), ReleaseError> {
        let has_skipped = report.count(Outcome::Skipped) > 0;
        let stepper = self.stepper_mut();
        report.gradients = stepper
            .pipeline
            .end_step(params, report.stepped(), has_skipped);
        let ended = match &stepper.in_flight {
            Some(in_flight) => in_flight.end_step(lr),
            None => Ok(()),
        };
        self.report(report);
        ended
    }
}

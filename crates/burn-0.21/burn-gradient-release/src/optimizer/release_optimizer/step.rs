//! Finishing the step that backward has begun; the states of the optimizer.

use std::sync::Arc;

use burn::{
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::{GradAdaptor, OptimizerAdaptor},
    },
};

use super::ReleaseOptimizer;
use crate::{
    ReductionError, ReleaseBackend,
    error::{Refused, ReleaseError, expect},
    groups::path_of,
    optimizer::{
        assign::assign,
        finish::{self, Grads},
        mark::check_unmarked,
        rate::OwnedRate,
        session::Session,
        step_plan::{Purpose, StepPlan, Stepping},
        stepper::Records,
    },
    util::progress::Recomputed,
};

impl<O, M, B> ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    /// [`Optimizer::step`], handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the rate, the model or the gradients are not those of the backward
    /// that has stepped, a gradient is not finite where that stops a step, the replicas do not
    /// agree, or no step can be taken with these settings.
    pub fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(plan) => Ok(self.finish(plan, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    /// [`Optimizer::step_multi`], handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// [`MultiDevice`](ReleaseError::MultiDevice) if a parameter was stepped inside backward, with
    /// the gradients of its own device alone, or if gradients are looked at before the first step;
    /// else as [`try_step`](Self::try_step).
    pub fn try_step_multi(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: MultiGradientsParams,
    ) -> Result<M, Refused<M, MultiGradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(plan) => Ok(self.finish(plan, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn finish(&mut self, plan: Arc<StepPlan<B::InnerBackend>>, model: M, grads: GradAdaptor) -> M {
        let session = self.state.begin_finish();
        let recomputed = session.as_ref().map(Session::recomputed);
        let is_skipped = plan.transform.is_overflown();
        // That of the handle which has armed the model, not of this optimizer.
        let tracer = plan.tracer.clone();
        let stepping = Stepping {
            stepper: self.stepper.clone(),
            plan,
        };
        let (mut report, model) = finish::finish(&stepping, is_skipped, session, model, grads);
        report.recomputed = Recomputed {
            planned_bytes: tracer.and_then(|tracer| tracer.planned_bytes()),
            ..recomputed.unwrap_or_default()
        };
        self.state.finish(report);
        let Some(rate) = &mut self.rate else {
            return model;
        };
        rate.applied();
        let next = rate.upcoming();
        // Before a step in two passes, there is one that measures.
        if self.stepper.gradients.needs_two_passes() {
            return model;
        }
        match assign(&self.stepper, Some(next), &model) {
            Ok(own) => {
                let plan = self.step_plan(next, own, self.state.measured());
                self.arm_for(plan, model, GradientsParams::new())
            }
            // The scheduler's next rate is out of range. This step is taken; the next is refused.
            Err(_) => model,
        }
    }

    /// The plan to finish the step with, or why it cannot be finished.
    fn check_finish(
        &mut self,
        given: LearningRate,
        model: &M,
        grads: &impl Grads,
    ) -> Result<Arc<StepPlan<B::InnerBackend>>, ReleaseError> {
        self.state
            .check_stopped(|param| path_of::<B, M>(model, param))?;
        self.state.check_fault()?;
        self.check_owned_groups()?;
        if self.stepper.reduction.is_some() {
            check_unmarked::<B, M>(model)?;
        }
        let owned = self.rate.as_mut().map(OwnedRate::upcoming);
        for armed in self.state.armed().into_iter().chain(owned) {
            if armed.to_bits() != given.to_bits() {
                return Err(ReleaseError::LearningRate { armed, given });
            }
        }
        if owned.is_some() {
            // The model will be armed again, which must not fail once it was stepped.
            self.check_arm_params(model)?;
            assign(&self.stepper, owned, model)?;
        }
        let armed = self.state.with_session(|session| {
            if let Some(session) = session.filter(|_| grads.is_multi())
                && (session.acted() > 0 || self.stepper.gradients.looks_ahead())
            {
                return Err(ReleaseError::MultiDevice {
                    stepped: session.acted(),
                    armed: session.armed(),
                });
            }
            finish::check_finish::<B, M>(session, model, grads)?;
            Ok(session.and_then(|session| session.plan().cloned()))
        })?;
        match armed {
            Some(plan) if plan.purpose == Purpose::Step => {
                let stepped = |session: Option<&Session<_>>| session.map_or(0, Session::acted);
                let has_run = self.state.with_session(stepped) > 0 || !grads.is_empty();
                if has_run || plan.transform.has_sums() {
                    plan.transform.check_scaled()?;
                }
                Ok(plan)
            }
            // The pass that measures may have found that there is nothing to step with.
            Some(_) => match self
                .state
                .measured()
                .filter(|measured| !measured.is_finite())
            {
                Some(measured) => {
                    let own = assign(&self.stepper, Some(given), model)?;
                    Ok(self.step_plan(given, own, Some(measured)))
                }
                None => Err(ReleaseError::OnlyMeasured),
            },
            None => self.plan_ordinary(given, model, grads),
        }
    }

    /// The plan of an ordinary step. All gradients exist, so all can be looked at before the first
    /// parameter is stepped.
    fn plan_ordinary(
        &self,
        given: LearningRate,
        model: &M,
        grads: &impl Grads,
    ) -> Result<Arc<StepPlan<B::InnerBackend>>, ReleaseError> {
        let gradients = &self.stepper.gradients;
        let own = assign(&self.stepper, Some(given), model)?;
        if !gradients.looks_ahead() {
            return Ok(self.step_plan(given, own, None));
        }
        if grads.is_multi() {
            return Err(ReleaseError::MultiDevice {
                stepped: 0,
                armed: 0,
            });
        }
        if !grads.is_empty() {
            gradients.check_scaled(false)?;
        }
        let look = self.step_plan(given, own.clone(), None);
        let params = finish::measure_rest::<B, M>(None, &look, model, grads)?;
        let (measured, culprit) = look.transform.end_measuring(params);
        match culprit {
            Some(param) if gradients.scaler.is_none() => Err(ReleaseError::NonFinite {
                path: path_of::<B, M>(model, param),
                stepped: 0,
                armed: 0,
            }),
            _ => Ok(self.step_plan(given, own, Some(measured))),
        }
    }

    /// [`Optimizer::to_record`], refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward; [`Reduction`](ReleaseError::Reduction) if it could not be
    /// [completed](Self::complete_next_record).
    pub fn try_to_record(&self) -> Result<Records<O, B>, ReleaseError> {
        self.state.check_idle()?;
        Ok(self.stepper.complete_records()?)
    }

    /// Lets `complete` add the states that other replicas have to the next record of this
    /// optimizer. It is called only when that record is made. The optimizer itself keeps its own
    /// states.
    pub fn complete_next_record(
        &mut self,
        complete: impl FnOnce(&mut Records<O, B>) -> Result<(), ReductionError> + Send + 'static,
    ) {
        self.stepper.set_completion(Box::new(complete));
    }

    /// Forgets the function given to [`complete_next_record`](Self::complete_next_record). Returns
    /// whether it was still to be called.
    pub fn forget_completion(&mut self) -> bool {
        self.stepper.take_completion().is_some()
    }

    /// Adds the states of parameters that have none here, because other replicas step them, as
    /// [`GradientReduction::is_owner`](crate::GradientReduction::is_owner) says, before a record of
    /// all states is made. Arming drops them again.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_add_states(&mut self, states: Records<O, B>) -> Result<(), ReleaseError> {
        self.state.check_idle()?;
        // Steps that are not armed leave those of an earlier call.
        self.stepper.drop_foreign_states();
        self.stepper.add_states(states);
        Ok(())
    }

    /// Removes gradient release: Burn's own optimizer with the states reached so far, step counts
    /// included.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that
    /// [`try_into_adaptor`](Self::try_into_adaptor) returns. That one hands the optimizer back; here
    /// its states are lost.
    pub fn into_adaptor(self) -> OptimizerAdaptor<O, M, B> {
        expect(self.try_into_adaptor())
    }

    /// [`into_adaptor`](Self::into_adaptor), handing the optimizer back where it refuses, as it does
    /// with states that are half old, half new. A model that is still armed is disarmed: its weights
    /// can be used as they are. Gradients it was armed with are dropped.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted) after
    /// a backward; [`NotBurns`](ReleaseError::NotBurns) with groups, clipping by norms, a loss
    /// scaler, a reduction over replicas or a stop at gradients that are not finite.
    #[expect(
        clippy::result_large_err,
        reason = "called once, at the end of a training"
    )]
    pub fn try_into_adaptor(self) -> Result<OptimizerAdaptor<O, M, B>, Refused<Self>> {
        let not_burns = self.stepper.not_burns();
        let checked = self.state.check_idle().and(match not_burns {
            Some(what) => Err(ReleaseError::NotBurns { what: what.into() }),
            None => Ok(()),
        });
        if let Err(error) = checked {
            return Err(Refused::new(self, error));
        }
        drop(self.state.take_session());
        let mut adaptor = OptimizerAdaptor::from(self.stepper.optim.clone());
        if let Some(clipping) = self.stepper.grad_clipping.clone() {
            adaptor = adaptor.with_grad_clipping(clipping);
        }
        Ok(adaptor.load_record(self.stepper.records()))
    }
}

//! Arming a model, and taking the arming back.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::{AutodiffModule, ParamId},
    optim::{GradientsParams, LearningRate, SimpleOptimizer},
};

use super::ReleaseOptimizer;
use crate::{
    ReleaseBackend,
    error::{Refused, ReleaseError, expect},
    groups::{ModuleLrScheduler, path_of},
    optimizer::{
        arming,
        assign::assign,
        gradients::GradNorm,
        rate::OwnedRate,
        session::{self, Session, Sums},
        step_plan::{Own, Purpose, StepPlan, Stepping},
    },
};

impl<O, M, B> ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    /// Arms the model for one optimizer step: until [`step`](burn::optim::Optimizer::step) every
    /// parameter that requires gradients is stepped inside backward with this learning rate.
    ///
    /// Arming again before a backward replaces the rate, also for forward passes that have already
    /// run. Clones of the model keep the values they have.
    pub fn arm(&mut self, lr: LearningRate, model: M) -> M {
        expect(self.try_arm(lr, model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the model cannot be armed, an earlier step is not finished, the rate
    /// is not that of the groups or of an optimizer that owns one, the norm to clip by was not
    /// measured, a gradient has overflown when it was, or no step can be taken with these settings.
    pub fn try_arm(&mut self, lr: LearningRate, model: M) -> Result<M, Refused<M>> {
        let grads = GradientsParams::new();
        match self.check_arm(lr, &model, &grads) {
            Ok(plan) => Ok(self.arm_for(plan, model, grads)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// Arms the model for the last micro-batch of an optimizer step, with the gradients that Burn's
    /// [`GradientsAccumulator`](burn::optim::GradientsAccumulator) holds from the earlier ones:
    /// each parameter is stepped inside backward with its held sum plus the new gradient, and both
    /// are freed.
    ///
    /// The earlier micro-batches run unarmed. Arming again keeps the gradients and adds those it is
    /// given; disarming drops them.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     nn::{Linear, LinearConfig},
    ///     optim::{AdamConfig, GradientsAccumulator, GradientsParams, Optimizer},
    ///     tensor::{Distribution, Tensor},
    /// };
    /// use burn_gradient_release::{GradientRelease, Outcome, WithGradientRelease};
    ///
    /// type B = GradientRelease<Autodiff<Flex>>;
    ///
    /// let device = Default::default();
    /// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
    /// let mut optim = AdamConfig::new().init().with_gradient_release();
    /// let grads_of = |model: &Linear<B>| {
    ///     let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
    ///     let grads = model.forward(batch).powi_scalar(2).mean().backward();
    ///     GradientsParams::from_grads(grads, model)
    /// };
    ///
    /// let mut accumulator = GradientsAccumulator::new();
    /// for _ in 0..3 {
    ///     accumulator.accumulate(&model, grads_of(&model));
    /// }
    /// model = optim.arm_accumulated(1e-3, model, accumulator.grads());
    /// let grads = grads_of(&model);
    /// model = optim.step(1e-3, model, grads);
    ///
    /// assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 2);
    /// # let _ = model;
    /// ```
    pub fn arm_accumulated(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> M {
        expect(self.try_arm_accumulated(lr, model, grads))
    }

    /// [`arm_accumulated`](Self::arm_accumulated), handing model and gradients back where it
    /// refuses.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm); [`NotMeasured`](ReleaseError::NotMeasured) also if a pass has
    /// measured the norm, which `grads` are not in: give them to
    /// [`try_arm_to_measure`](Self::try_arm_to_measure).
    pub fn try_arm_accumulated(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_arm(lr, &model, &grads) {
            Ok(plan) => Ok(self.arm_for(plan, model, grads)),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    /// Arms a model, which replaces the previous arming.
    pub(super) fn arm_for(
        &mut self,
        plan: Arc<StepPlan<B::InnerBackend>>,
        model: M,
        grads: GradientsParams,
    ) -> M {
        let before = self.state.take_session();
        let stepping = self.stepping(&plan);
        let (armed, model) = arming::arm(&stepping, model);
        self.stepper.drop_foreign_states();
        self.state.arm(armed.replace(before, grads, Some(plan)));
        model
    }

    pub(super) fn arm_by_fork_for(
        &mut self,
        plan: Arc<StepPlan<B::InnerBackend>>,
        copy: M,
        grads: GradientsParams,
        fork: impl FnOnce(),
    ) -> Result<(), Refused<(), GradientsParams>> {
        match arming::arm_by_fork(&self.stepping(&plan), copy, fork) {
            Ok(armed) => {
                let before = self.state.take_session();
                self.stepper.drop_foreign_states();
                self.state.arm(armed.replace(before, grads, Some(plan)));
                Ok(())
            }
            Err(error) => Err(Refused::with_grads((), grads, error)),
        }
    }

    fn stepping(&self, plan: &Arc<StepPlan<B::InnerBackend>>) -> Arc<Stepping<O, B>> {
        Arc::new(Stepping {
            stepper: self.stepper.clone(),
            plan: plan.clone(),
        })
    }

    pub(super) fn step_plan(
        &self,
        learning_rate: LearningRate,
        own: HashMap<ParamId, Own>,
        measured: Option<GradNorm>,
    ) -> Arc<StepPlan<B::InnerBackend>> {
        Arc::new(StepPlan {
            purpose: Purpose::Step,
            learning_rate,
            own,
            transform: self.stepper.gradients.transform(measured),
            reduction: self.stepper.reduction.clone(),
            tracer: self.stepper.tracer.clone(),
        })
    }

    /// Arms a model whose owner only hands out copies of it, such as burn-train's `Learner`: `copy`
    /// is one, and `fork` makes the owner [fork](burn::module::Module::fork) its model on the
    /// device where it is. No other code of the model runs. `grads` is as for
    /// [`arm_accumulated`](Self::arm_accumulated), and empty without earlier micro-batches.
    ///
    /// # Errors
    ///
    /// As [`try_arm_accumulated`](Self::try_arm_accumulated), and
    /// [`NotForked`](ReleaseError::NotForked) if the fork left out a parameter. The gradients are
    /// handed back.
    pub fn try_arm_by_fork(
        &mut self,
        lr: LearningRate,
        copy: M,
        grads: GradientsParams,
        fork: impl FnOnce(),
    ) -> Result<(), Refused<(), GradientsParams>> {
        match self.check_arm(lr, &copy, &grads) {
            Ok(plan) => self.arm_by_fork_for(plan, copy, grads, fork),
            Err(error) => Err(Refused::with_grads((), grads, error)),
        }
    }

    /// The plan of a step of the model, or why it cannot be armed.
    fn check_arm(
        &mut self,
        lr: LearningRate,
        model: &M,
        grads: &GradientsParams,
    ) -> Result<Arc<StepPlan<B::InnerBackend>>, ReleaseError> {
        self.state
            .check_arm(|param| path_of::<B, M>(model, param))?;
        self.check_owned_rate(lr)?;
        let measured = self.state.measured();
        let is_measured = match measured {
            Some(measured) if !measured.is_finite() => return Err(ReleaseError::Overflown),
            Some(_) => grads.is_empty(),
            None => !self.stepper.gradients.needs_two_passes(),
        };
        if !is_measured {
            return Err(ReleaseError::NotMeasured);
        }
        self.check_arm_params(model)?;
        let own = assign(&self.stepper, Some(lr), model)?;
        Ok(self.step_plan(lr, own, measured))
    }

    pub(super) fn check_arm_params(&self, model: &M) -> Result<(), ReleaseError> {
        self.state
            .with_session(|session| arming::check_arm::<B, M>(session, model))
    }

    pub(super) fn check_owned_groups(&self) -> Result<(), ReleaseError> {
        let Some(owned) = &self.rate else {
            return Ok(());
        };
        let scheduler = owned.scheduler::<ModuleLrScheduler>();
        let has_groups = scheduler.is_some_and(ModuleLrScheduler::has_groups);
        match has_groups || self.stepper.learning_rates.is_some() {
            true => Err(ReleaseError::OwnedGroupRates),
            false => Ok(()),
        }
    }

    pub(super) fn check_owned_rate(&mut self, given: LearningRate) -> Result<(), ReleaseError> {
        self.check_owned_groups()?;
        match self.rate.as_mut().map(OwnedRate::upcoming) {
            Some(owned) if owned.to_bits() != given.to_bits() => {
                Err(ReleaseError::OwnedLearningRate { owned, given })
            }
            _ => Ok(()),
        }
    }

    /// Takes the arming back: the model is an ordinary one again, and a forward pass that has
    /// already run gives ordinary gradients. Gradients it was armed with are dropped.
    pub fn disarm(&mut self, model: M) -> M {
        expect(self.try_disarm(model))
    }

    /// [`disarm`](Self::disarm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if a backward has stepped parameters, or another optimizer has armed the
    /// model.
    pub fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>> {
        self.disarm_with_sums(model).map(|(model, _)| model)
    }

    /// Disarms a model. Returns it and the gradients it was armed with.
    pub(super) fn disarm_with_sums(&mut self, model: M) -> Result<(M, Sums), Refused<M>> {
        let own = |session: Option<&_>| arming::check_own::<B, M>(session, &model);
        let checked = self.state.check_idle();
        if let Err(error) = checked.and_then(|()| self.state.with_session(own)) {
            return Err(Refused::new(model, error));
        }
        let sums = self.state.take_session().map(Session::withdraw);
        self.state.set_measured(None);
        Ok((session::disarm::<B, M>(model), sums.unwrap_or_default()))
    }
}

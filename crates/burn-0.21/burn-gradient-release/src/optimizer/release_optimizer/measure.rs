//! Steps in two backward passes: the first measures the norm of the gradients, the second steps.

use std::sync::Arc;

use burn::{
    module::AutodiffModule,
    optim::{GradientsParams, LearningRate, SimpleOptimizer},
    tensor::{Tensor, backend::AutodiffBackend},
};

use super::ReleaseOptimizer;
use crate::{
    ReleaseBackend,
    error::{Refused, ReleaseError, expect},
    groups::path_of,
    optimizer::{
        assign::assign,
        finish,
        gradients::GradNorm,
        step_plan::{Purpose, StepPlan},
        two_passes::TwoPasses,
    },
};

/// A stepped model, and its loss before.
type WithLoss<M, B> = (M, Tensor<<B as AutodiffBackend>::InnerBackend, 1>);

impl<O, M, B> ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    /// Takes one step in two passes: runs `forward` and its backward pass once to measure the norm
    /// of all gradients, each of which is dropped as soon as it is measured, and once to step with
    /// the clipped gradients. Returns the model and the loss.
    ///
    /// It needs no more memory than a step in one pass, and twice its time. Both passes have the
    /// same random numbers and running means: see [`TwoPasses`]. With a
    /// [`LossScaler`](crate::LossScaler), the whole step is skipped if a gradient has overflown.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     nn::{Linear, LinearConfig},
    ///     optim::AdamWConfig,
    ///     tensor::{Distribution, Tensor},
    /// };
    /// use burn_gradient_release::{GradientRelease, NormClipping, WithGradientRelease};
    ///
    /// type B = GradientRelease<Autodiff<Flex>>;
    ///
    /// let device = Default::default();
    /// let model: Linear<B> = LinearConfig::new(4, 2).init(&device);
    /// let optim = AdamWConfig::new().init().with_gradient_release();
    /// let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    ///
    /// let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
    /// let (model, loss) = optim.two_passes(1e-3, model, |model| {
    ///     model.forward(batch.clone()).powi_scalar(2).sum()
    /// });
    ///
    /// let step = optim.last_step().unwrap();
    /// assert!(step.grad_norm().unwrap() > 1.0 && step.clip_coefficient().unwrap() < 1.0);
    /// # let _ = (model, loss);
    /// ```
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_two_passes`](Self::try_two_passes) returns,
    /// and if the second pass draws other random numbers than the first.
    pub fn two_passes(
        &mut self,
        lr: LearningRate,
        model: M,
        forward: impl FnMut(&M) -> Tensor<B, 1>,
    ) -> (M, Tensor<B::InnerBackend, 1>) {
        expect(self.try_two_passes(lr, model, GradientsParams::new(), forward))
    }

    /// [`two_passes`](Self::two_passes), handing back where it refuses: the model, disarmed if the
    /// first pass has begun, and `grads`. These are those of earlier micro-batches, as for
    /// [`arm_accumulated`](Self::arm_accumulated).
    ///
    /// # Errors
    ///
    /// As [`try_arm_to_measure`](Self::try_arm_to_measure), [`try_measured`](Self::try_measured),
    /// [`try_arm`](Self::try_arm) and [`try_step`](Self::try_step), and
    /// [`NotRepeatable`](ReleaseError::NotRepeatable) if the two losses differ, or their random
    /// numbers. No weight has changed then.
    pub fn try_two_passes(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
        mut forward: impl FnMut(&M) -> Tensor<B, 1>,
    ) -> Result<WithLoss<M, B>, Refused<M, GradientsParams>> {
        let rates = self.check_owned_rate(lr);
        if let Err(error) = rates.and_then(|()| assign(&self.stepper, Some(lr), &model)) {
            return Err(Refused::with_grads(model, grads, error));
        }
        let model = self.try_arm_to_measure(model, grads)?;
        let mut run = |model: &M| {
            let loss = forward(model);
            (loss.clone().inner(), loss)
        };
        let ((first, grads), mut passes) = TwoPasses::first(&model, || {
            let (value, loss) = run(&model);
            (value, GradientsParams::from_grads(loss.backward(), &model))
        });
        let measured = match self.try_measured(&model, grads) {
            Ok(measured) => measured,
            Err(refused) => {
                passes.undo(&model);
                return Err(self.refuse_disarmed(model, refused.into()));
            }
        };
        if !measured.is_finite() {
            let stepped = self.try_step(lr, model, GradientsParams::new());
            return self.or_disarmed(stepped).map(|model| (model, first));
        }
        let model = match self.try_arm(lr, model) {
            Ok(model) => model,
            Err(refused) => {
                let (model, error) = refused.into_parts();
                passes.undo(&model);
                return Err(self.refuse_disarmed(model, error));
            }
        };
        let ((value, loss), draws_all) = passes.second(model.clone(), || run(&model));
        if !draws_all || first.into_data() != value.to_data() {
            passes.undo(&model);
            return Err(self.refuse_disarmed(model, ReleaseError::NotRepeatable));
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let stepped = self.try_step(lr, model, grads);
        self.or_disarmed(stepped).map(|model| (model, value))
    }

    fn or_disarmed<G>(
        &mut self,
        result: Result<M, Refused<M, G>>,
    ) -> Result<M, Refused<M, GradientsParams>> {
        result.map_err(|refused| {
            let (model, error) = refused.into_parts();
            self.refuse_disarmed(model, error)
        })
    }

    /// Hands back the model, disarmed, and the gradients it was armed with, unless a part of it was
    /// stepped.
    fn refuse_disarmed(&mut self, model: M, error: ReleaseError) -> Refused<M, GradientsParams> {
        match self.disarm_with_sums(model) {
            Ok((model, sums)) => {
                let sums = sums.into_one::<B, M>(&model);
                Refused::with_grads(model, sums, error)
            }
            Err(refused) => {
                Refused::with_grads(refused.into_model(), GradientsParams::new(), error)
            }
        }
    }

    /// Arms the model for the first of two passes, which measures: each gradient is dropped as soon
    /// as its norm is known, and no weight changes. `grads` are those of earlier micro-batches, as
    /// for [`arm_accumulated`](Self::arm_accumulated); they stay with the model for the second
    /// pass.
    ///
    /// The passes by hand, for a loop in which [`two_passes`](Self::two_passes) has no place: arm
    /// to measure, run backward, end with [`try_measured`](Self::try_measured), [`arm`](Self::arm),
    /// run forward and backward again, [`step`](burn::optim::Optimizer::step). If the norm was not
    /// finite, call `step` at once, which skips the step. Run both within [`TwoPasses`], which makes
    /// them draw the same random numbers: nothing else notices that they do not.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm), except those for rates, and `NotMeasured`.
    pub fn try_arm_to_measure(
        &mut self,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_arm_to_measure(&model) {
            Ok(plan) => {
                self.state.set_measured(None);
                Ok(self.arm_for(plan, model, grads))
            }
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    /// Arms a model that an owner holds to measure: see [`try_arm_by_fork`](Self::try_arm_by_fork).
    ///
    /// # Errors
    ///
    /// As [`try_arm_to_measure`](Self::try_arm_to_measure), and
    /// [`NotForked`](ReleaseError::NotForked).
    pub fn try_arm_to_measure_by_fork(
        &mut self,
        copy: M,
        grads: GradientsParams,
        fork: impl FnOnce(),
    ) -> Result<(), Refused<(), GradientsParams>> {
        match self.check_arm_to_measure(&copy) {
            Ok(plan) => {
                self.arm_by_fork_for(plan, copy, grads, fork)?;
                self.state.set_measured(None);
                Ok(())
            }
            Err(error) => Err(Refused::with_grads((), grads, error)),
        }
    }

    fn check_arm_to_measure(
        &self,
        model: &M,
    ) -> Result<Arc<StepPlan<B::InnerBackend>>, ReleaseError> {
        self.state
            .check_arm(|param| path_of::<B, M>(model, param))?;
        self.check_arm_params(model)?;
        Ok(Arc::new(StepPlan {
            purpose: Purpose::MeasureNorm,
            learning_rate: LearningRate::default(),
            own: assign(&self.stepper, None, model)?,
            transform: self.stepper.gradients.transform(None),
            reduction: self.stepper.reduction.clone(),
            tracer: self.stepper.tracer.clone(),
        }))
    }

    /// Ends the pass that measures, with the gradients that its backward has returned: parameters
    /// that were not measured inside backward are measured now. A second call says the same again.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] with the gradients if no model is armed to measure, a gradient is not
    /// finite and there is no [`LossScaler`](crate::LossScaler) whose scale could be too high, or
    /// these are not exactly the gradients that would be stepped with.
    pub fn try_measured(
        &mut self,
        model: &M,
        grads: GradientsParams,
    ) -> Result<GradNorm, Refused<(), GradientsParams>> {
        self.measured(model, &grads)
            .map_err(|error| Refused::with_grads((), grads, error))
    }

    fn measured(&mut self, model: &M, grads: &GradientsParams) -> Result<GradNorm, ReleaseError> {
        self.state.check_fault()?;
        let before = self.state.measured();
        let measured = self.state.with_session(|session| {
            let session = session.filter(|session| session.is_measuring());
            let session = session.ok_or(ReleaseError::NotMeasuring)?;
            let plan = session.plan().expect("what is measured has a plan");
            if before.is_none() {
                plan.transform.check_scaled()?;
            }
            finish::check_finish::<B, M>(Some(session), model, grads).map_err(
                |error| match error {
                    ReleaseError::AlreadyStepped { param } => ReleaseError::MeasuredTwice { param },
                    error => error,
                },
            )?;
            let params = finish::measure_rest::<B, M>(Some(session), plan, model, grads)?;
            match plan.transform.end_measuring(params) {
                (_, Some(param)) if self.stepper.gradients.scaler.is_none() => {
                    Err(session.non_finite(path_of::<B, M>(model, param)))
                }
                (measured, _) => Ok(measured),
            }
        })?;
        if before.is_none() {
            self.stepper.gradients.begin_second_pass();
        }
        self.state.set_measured(Some(measured));
        Ok(measured)
    }
}

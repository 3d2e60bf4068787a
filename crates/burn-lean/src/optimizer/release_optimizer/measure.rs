//! Steps in two backward passes: the first measures the norm of the gradients, the second steps.

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::ReleaseOptimizer;
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::GradNorm;
use crate::optimizer::claims::{check_claims, check_sums};
use crate::optimizer::ordinary;
use crate::optimizer::survey::Survey;
use crate::path::path_text;
use crate::recompute::TwoPasses;
use crate::session::Purpose;

impl ReleaseOptimizer {
    /// Takes one step in two passes: runs `forward` and its backward pass once to measure the norm
    /// of all gradients, each of which is dropped as soon as it is measured, and once to step with
    /// the gradients that the norm asks for. Returns the model and the loss.
    ///
    /// It needs as much memory as a step in one pass, and twice its time. Both passes have the same
    /// random numbers and running statistics: see [`TwoPasses`]. With a
    /// [`LossScaler`](crate::LossScaler), the whole step is skipped if a gradient has overflowed.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamWConfig;
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_lean::{NormClipping, WithGradientRelease};
    ///
    /// let device = Device::flex().autodiff();
    /// let model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let optim = AdamWConfig::new().init().with_gradient_release();
    /// let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    ///
    /// let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
    /// let (model, loss) = optim.two_passes(1e-3, model, |model| {
    ///     model.forward(batch.clone()).square().sum()
    /// });
    ///
    /// let step = optim.last_step().unwrap();
    /// assert!(step.grad_norm().unwrap() > 1.0 && step.clip_coefficient().unwrap() < 1.0);
    /// # let _ = (model, loss);
    /// ```
    pub fn two_passes<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        forward: impl FnMut(&M) -> Tensor<1>,
    ) -> (M, Tensor<1>) {
        expect(self.try_two_passes(lr, model, GradientsParams::new(), forward))
    }

    /// [`two_passes`](Self::two_passes), handing back where it refuses: the model, disarmed, and
    /// the sums. `sums` are those of earlier micro-batches, as for
    /// [`arm_accumulated`](Self::arm_accumulated).
    ///
    /// # Errors
    ///
    /// As [`try_arm_to_measure`](Self::try_arm_to_measure), [`try_measured`](Self::try_measured),
    /// [`try_arm`](Self::try_arm) and [`try_step`](Self::try_step), and
    /// [`NotRepeatable`](ReleaseError::NotRepeatable) if the two losses differ. With
    /// `NotRepeatable`, no weight and no running statistic has changed.
    pub fn try_two_passes<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        sums: GradientsParams,
        mut forward: impl FnMut(&M) -> Tensor<1>,
    ) -> Result<(M, Tensor<1>), Refused<M, GradientsParams>> {
        let lr = lr.into();
        if let Err(error) = Survey::of(&model).check_rates(&lr) {
            return Err(Refused::with_grads(model, sums, error));
        }
        let model = self.try_arm_to_measure(model, sums)?;
        let mut run = |model: &M| {
            let loss = forward(model);
            (loss.clone().inner(), loss)
        };
        let ((first, grads), passes) = TwoPasses::first(&model, || {
            let (value, loss) = run(&model);
            (value, GradientsParams::from_grads(loss.backward(), &model))
        });
        let measured = match self.try_measured(&model, grads) {
            Ok(measured) => measured,
            Err(refused) => {
                passes.undo(&model);
                return Err(self.disarmed(Refused::new(model, refused.into())));
            }
        };
        if !measured.is_finite() {
            let skipped = self.try_step(lr, model, GradientsParams::new());
            let model = skipped.map_err(|refused| self.disarmed(refused))?;
            return Ok((model, first));
        }
        let model = match self.try_arm(lr.clone(), model) {
            Ok(model) => model,
            Err(refused) => {
                passes.undo(refused.model());
                return Err(self.disarmed(refused));
            }
        };
        let second = passes.second(&model, || {
            let (value, loss) = run(&model);
            // Before backward steps with it.
            let is_same = first.into_data() == value.to_data();
            is_same.then(|| {
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                (value, grads)
            })
        });
        let Some((value, grads)) = second else {
            passes.undo(&model);
            return Err(self.disarmed(Refused::new(model, ReleaseError::NotRepeatable)));
        };
        let stepped = self.try_step(lr, model, grads);
        let model = stepped.map_err(|refused| self.disarmed(refused))?;
        Ok((model, value))
    }

    /// The refusal with the model disarmed, and with the sums it was armed with, unless a part of it
    /// was stepped.
    fn disarmed<M: Module, G>(&mut self, refused: Refused<M, G>) -> Refused<M, GradientsParams> {
        let (model, error) = refused.into_parts();
        match self.try_disarm_accumulated(model) {
            Ok((model, sums)) => Refused::with_grads(model, sums, error),
            Err(refused) => {
                Refused::with_grads(refused.into_model(), GradientsParams::new(), error)
            }
        }
    }

    /// Arms the model for the first of two passes, which measures: each gradient is dropped as soon
    /// as its norm is known, and no weight changes. `sums` are those of earlier micro-batches, as
    /// for [`arm_accumulated`](Self::arm_accumulated); they stay with the model for the second
    /// pass.
    ///
    /// The passes by hand, for a loop in which [`two_passes`](Self::two_passes) has no place: arm
    /// to measure, run backward, end with [`try_measured`](Self::try_measured), [`arm`](Self::arm),
    /// run forward and backward again, [`step`](Self::step). Where the norm was not finite, `step`
    /// at once, which skips the step. [`TwoPasses`] makes both passes the same.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm), but for `NotMeasured` and `Overflown`.
    pub fn try_arm_to_measure<M: Module>(
        &mut self,
        model: M,
        sums: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let checked = self.check_arm(&model).and_then(|survey| {
            check_sums(&survey, &sums)?;
            Ok(survey)
        });
        let survey = match checked {
            Ok(survey) => survey,
            Err(error) => return Err(Refused::with_grads(model, sums, error)),
        };
        self.begin_pass(&survey);
        let mut stepper = self.session.stepper();
        stepper.lr = None;
        stepper.gradients.begin_measuring();
        drop(stepper);
        Ok(self.arm_for(Purpose::MeasureNorm, sums, model, survey))
    }

    /// Ends the pass that measures, with the gradients that its backward has returned: parameters
    /// that were not measured inside backward are measured now. Hands the gradients back where it
    /// refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if no model is armed to measure, a gradient is not finite and there is no
    /// [`LossScaler`](crate::LossScaler) whose scale could have been too high, the gradients are
    /// not all, or not those, that would be stepped with, or the replicas of the model do not do
    /// the same.
    pub fn try_measured<M: Module>(
        &mut self,
        model: &M,
        grads: GradientsParams,
    ) -> Result<GradNorm, Refused<(), GradientsParams>> {
        let measured = self.measured(&Survey::of(model), &grads);
        measured.map_err(|error| Refused::with_grads((), grads, error))
    }

    fn measured(
        &mut self,
        survey: &Survey,
        grads: &GradientsParams,
    ) -> Result<GradNorm, ReleaseError> {
        self.session.wait_for_reductions()?;
        self.check_measured(grads, survey)?;
        let measured = ordinary::measure(&self.session, survey, grads).and_then(|()| {
            let is_plain = self.session.orders().is_plain();
            let gradients = &mut self.session.stepper().gradients;
            let measured = gradients.end_measuring(&survey.ids(), is_plain);
            measured.map_err(|param| ReleaseError::NonFinite {
                path: survey.path_of(param),
                stepped: 0,
                armed: 0,
            })
        });
        if measured.is_err() {
            ordinary::forget(&self.session);
        }
        let measured = measured?;
        self.session.stepper().gradients.begin_second_pass();
        for slot in self.session.slots().values() {
            slot.rest();
        }
        self.session.progress.reset();
        self.session.arm();
        Ok(measured)
    }

    fn check_measured(&self, grads: &GradientsParams, survey: &Survey) -> Result<(), ReleaseError> {
        let stepper = self.session.stepper();
        let gradients = &stepper.gradients;
        let is_open = gradients.is_measuring() && gradients.measured().is_none();
        if !is_open || !self.session.is_armed() {
            return Err(ReleaseError::NotMeasuring);
        }
        gradients.check_scaled()?;
        drop(stepper);
        for slot in self.session.slots().values() {
            if slot.phase().is_taken_twice() {
                let path = path_text(&slot.path());
                return Err(ReleaseError::MeasuredTwice { path });
            }
        }
        survey.check_own(&self.session, |slot| slot.phase().is_taken())?;
        check_claims(&self.session, survey, grads)
    }
}

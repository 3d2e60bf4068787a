//! Steps in two backward passes: the first measures the norm of the gradients, the second steps.

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;

use super::checks::Survey;
use super::pass::Entry;
use super::report::Outcome;
use super::{ReleaseOptimizer, try_backward};
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::GradNorm;
use crate::recompute::TwoPasses;

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
        expect(
            self.try_two_passes(lr, model, forward)
                .map_err(ReleaseError::from),
        )
    }

    /// [`two_passes`](Self::two_passes), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_measure`](Self::try_measure) and [`try_backward`](Self::try_backward), and
    /// [`NotRepeatable`](ReleaseError::NotRepeatable) if the two losses differ. With
    /// `NotRepeatable`, no weight and no running statistic has changed.
    pub fn try_two_passes<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        mut forward: impl FnMut(&M) -> Tensor<1>,
    ) -> Result<(M, Tensor<1>), Refused<M>> {
        let lr = lr.into();
        let checked = self.check(&model).and_then(|survey| {
            survey.check_rates(&lr)?;
            self.check_steps(&survey)
        });
        if let Err(error) = checked {
            return Err(Refused::new(model, error));
        }
        let ((first, measured), passes) = TwoPasses::first(&model, || {
            let loss = forward(&model);
            (loss.clone().inner(), self.try_measure(loss, &model))
        });
        match measured {
            Ok(norm) if norm.is_finite() => {}
            // The step was skipped.
            Ok(_) => return Ok((model, first)),
            Err(refused) => {
                passes.undo(&model);
                return Err(Refused::new(model, refused.into()));
            }
        }
        let loss = passes.second(&model, || forward(&model));
        let value = loss.clone().inner();
        // Before backward steps with it.
        if first.into_data() != value.to_data() {
            passes.undo(&model);
            self.stepper_mut().pipeline.forget_measured();
            return Err(Refused::new(model, ReleaseError::NotRepeatable));
        }
        match self.try_backward(lr, loss, model) {
            Ok(model) => Ok((model, value)),
            Err(refused) => {
                let (model, error) = refused.into_parts();
                Err(Refused::new(model, error))
            }
        }
    }

    /// Runs backward from the loss, and measures the norm of all gradients, each of which is dropped as
    /// soon as it is measured. The next [`backward`](Self::backward), over the same forward pass, clips
    /// by it. No weight changes; sums of micro-batches stay, and are in the norm.
    ///
    /// [`two_passes`](Self::two_passes) does both. By hand, [`TwoPasses`] makes the passes the same. A
    /// norm that is not finite ends the step, which is skipped: with a [`LossScaler`](crate::LossScaler),
    /// whose scale falls.
    pub fn measure<M: Module, const D: usize>(&mut self, loss: Tensor<D>, model: &M) -> GradNorm {
        expect(self.try_measure(loss, model).map_err(ReleaseError::from))
    }

    /// [`measure`](Self::measure), handing back the loss where it refuses before backward.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`], as [`NonFinite`](ReleaseError::NonFinite): a gradient is not finite, and
    /// there is no [`LossScaler`](crate::LossScaler) whose scale could have been too high.
    pub fn try_measure<M: Module, const D: usize>(
        &mut self,
        loss: Tensor<D>,
        model: &M,
    ) -> Result<GradNorm, Refused<(), Option<Tensor<D>>>> {
        try_backward(loss, self.measuring(model)).map(|(norm, _)| norm)
    }

    pub(super) fn end_measuring(
        &mut self,
        survey: &Survey,
        entries: &[Entry],
    ) -> Result<GradNorm, ReleaseError> {
        let pipeline = &mut self.stepper_mut().pipeline;
        let measured = pipeline.end_measuring(&survey.ids());
        let measured = measured.map_err(|param| ReleaseError::NonFinite {
            path: survey.path_of(param),
            stepped: 0,
            of: entries.len(),
        })?;
        if measured.is_finite() {
            pipeline.end_pass();
            return Ok(measured);
        }
        self.sums.clear();
        let outcomes = entries.iter().map(|entry| match entry.outcome {
            Outcome::Unused => (entry.id, Outcome::Unused),
            _ => (entry.id, Outcome::Skipped),
        });
        self.skip_step(outcomes.collect());
        Ok(measured)
    }
}

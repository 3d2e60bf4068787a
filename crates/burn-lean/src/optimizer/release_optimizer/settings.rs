//! Settings of an optimizer: gradient transforms and groups.

use burn::grad_clipping::GradientClipping;
use burn::module::ParamGroup;
use burn::optim::{DynOptimizer, ModuleOptimizer};

use super::ReleaseOptimizer;
use crate::error::{ReleaseError, expect};
use crate::gradients::{GradientRecord, LossScaler, NormClipping};

impl ReleaseOptimizer {
    /// Clips gradients by their norms, with release and without: see [`NormClipping`]. A setting
    /// that is out of range is refused when a model is armed or stepped.
    pub fn with_norm_clipping(self, clipping: NormClipping) -> Self {
        self.session.stepper().gradients.set_clipping(clipping);
        self
    }

    /// Unscales the gradients of a scaled loss before they are clipped, and skips those that have
    /// overflowed: see [`LossScalerConfig`](crate::LossScalerConfig).
    ///
    /// In [two passes](Self::two_passes) and in a step that is not armed, the whole step is
    /// skipped. In one pass, only the parameters whose gradients have overflowed are skipped: see
    /// [`Outcome::Skipped`](crate::Outcome::Skipped).
    pub fn with_loss_scaler(self, scaler: LossScaler) -> Self {
        self.session.stepper().gradients.set_scaler(scaler);
        self
    }

    /// Stops at the first gradient whose norm is not finite, before its weight changes:
    /// [`step`](Self::step) is refused, and no later parameter was stepped. On a GPU, this waits
    /// for each gradient. With a [loss scaler](Self::with_loss_scaler), which skips such steps, nothing
    /// stops.
    pub fn with_non_finite_stop(self) -> Self {
        self.session.stepper().gradients.stops_at_non_finite = true;
        self
    }

    /// Gives the optimizer gradients in f32 of weights in half precision, for an optimizer that
    /// computes in f32, as those of [`optim`](crate::optim) in five bytes do. Nothing is rounded
    /// between the sum of micro-batches, the scale of the loss, the clip, and the step. Weights in
    /// f16 with a [loss scaler](Self::with_loss_scaler) need it.
    ///
    /// `arm` and `step` refuse it for an optimizer that computes in the type of the weight, as Burn's
    /// do ([`F32Gradients`](crate::ReleaseError::F32Gradients)).
    pub fn with_f32_gradients(self) -> Self {
        self.refuse_step_with("with_f32_gradients");
        let mut stepper = self.session.stepper();
        stepper.gradients.gives_f32 = true;
        stepper.asked.clear();
        drop(stepper);
        self
    }

    /// Measures the global norm in each step:
    /// [`StepReport::grad_norm`](crate::StepReport::grad_norm).
    pub fn with_grad_norm(self) -> Self {
        self.session.stepper().gradients.reports_norm = true;
        self
    }

    /// Whether the gradients of a step must be measured before it.
    pub fn needs_two_passes(&self) -> bool {
        self.session.stepper().gradients.needs_two_passes()
    }

    /// Burn's [`ModuleOptimizer::with_group`](burn::optim::ModuleOptimizer::with_group), with a
    /// check: a group that no parameter of the model is in is refused when a model is armed or
    /// stepped. Of several groups that a parameter is in, the last one counts; states of its
    /// parameters begin anew. Between `arm` and `step` it comes too late:
    /// [`SetInStep`](crate::ReleaseError::SetInStep).
    pub fn with_group(
        mut self,
        group: ParamGroup,
        optim: impl DynOptimizer + 'static,
        grad_clipping: Option<GradientClipping>,
    ) -> Self {
        self.refuse_step_with("with_group");
        let mut stepper = self.session.stepper();
        let with_group = |of: ModuleOptimizer| of.with_group(group.clone(), optim, grad_clipping);
        stepper.optim = stepper.optim.take().map(with_group);
        stepper.asked.clear();
        drop(stepper);
        self.groups.push(group);
        self
    }

    /// Refuses the step that a model is armed for. A part of it would be taken with a setting that `arm` has
    /// not checked.
    fn refuse_step_with(&self, setting: &str) {
        let is_armed = self.session.is_armed();
        let mut stepper = self.session.stepper();
        // No pass that measures: the model is armed again after it.
        if is_armed && stepper.lr.is_some() {
            let setting = setting.into();
            let error = ReleaseError::SetInStep { setting };
            stepper.gradients.refuse_step(error);
        }
    }

    /// The state of the gradient transforms: save it beside the optimizer's record.
    pub fn gradient_record(&self) -> GradientRecord {
        expect(self.try_gradient_record())
    }

    /// [`gradient_record`](Self::gradient_record), refusing one of half a step.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted).
    pub fn try_gradient_record(&self) -> Result<GradientRecord, ReleaseError> {
        self.check_unfinished()?;
        Ok(self.session.stepper().gradients.to_record())
    }

    /// Loads a saved state. The scale goes to the loss scaler that the optimizer has at this
    /// moment.
    pub fn load_gradient_record(self, record: GradientRecord) -> Self {
        self.session.stepper().gradients.load_record(record);
        self
    }
}

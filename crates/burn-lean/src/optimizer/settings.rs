//! Settings of an optimizer: gradient transforms and groups.

use burn::grad_clipping::GradientClipping;
use burn::module::ParamGroup;
use burn::optim::DynOptimizer;

use super::checks::Asked;
use super::pass::Stepper;
use super::{HERE, ReleaseOptimizer};
use crate::gradients::{LossScaler, NormClipping};

impl ReleaseOptimizer {
    /// Clips gradients by their norms, inside backward and in an ordinary step: see [`NormClipping`]. A
    /// setting that is out of range is refused when a model is stepped.
    pub fn with_norm_clipping(mut self, clipping: NormClipping) -> Self {
        self.stepper_mut().pipeline.set_clipping(clipping);
        self
    }

    /// Unscales the gradients of a scaled loss before they are clipped, and skips those that have
    /// overflowed: see [`LossScalerConfig`](crate::LossScalerConfig).
    ///
    /// In [two passes](Self::two_passes) and in an [ordinary step](Self::step), the whole step is
    /// skipped. In one pass, only the parameters whose gradients have overflowed are skipped: see
    /// [`Outcome::Skipped`](crate::Outcome::Skipped).
    pub fn with_loss_scaler(mut self, scaler: LossScaler) -> Self {
        let has_sums = self.has_sums();
        self.stepper_mut().pipeline.set_scaler(scaler, has_sums);
        self
    }

    /// Stops at the first gradient whose norm is not finite, before its weight changes:
    /// [`backward`](Self::backward) is refused, and no later parameter was stepped. On a GPU, this waits
    /// for each gradient. With a [loss scaler](Self::with_loss_scaler), which skips such steps, nothing
    /// stops.
    pub fn with_non_finite_stop(mut self) -> Self {
        self.stepper_mut().pipeline.stops_at_non_finite = true;
        self
    }

    /// Gives the optimizer gradients in f32, also of weights in half precision. It is for an
    /// optimizer that computes in f32, such as those of [`optim`](crate::optim) in five bytes.
    /// Nothing is rounded between the sum of micro-batches, the scale of the loss, the clip, and
    /// the step. Weights in f16 with a [loss scaler](Self::with_loss_scaler) need it.
    ///
    /// A step is refused for an optimizer that computes in the type of the weight, as Burn's do.
    pub fn with_f32_gradients(mut self) -> Self {
        self.stepper_mut().pipeline.gives_f32 = true;
        self.asked = Asked::default();
        self
    }

    /// Measures the global norm in each step:
    /// [`StepReport::grad_norm`](crate::StepReport::grad_norm).
    pub fn with_grad_norm(mut self) -> Self {
        self.stepper_mut().pipeline.reports_norm = true;
        self
    }

    /// Whether the gradients of a step must be measured before it.
    pub fn needs_two_passes(&self) -> bool {
        self.stepper().pipeline.needs_two_passes()
    }

    /// Burn's [`ModuleOptimizer::with_group`](burn::optim::ModuleOptimizer::with_group), with a
    /// check: a group that no parameter of the model is in is refused when a model is stepped. Of
    /// several groups that a parameter is in, the last one counts; states of its parameters begin anew.
    pub fn with_group(
        mut self,
        group: ParamGroup,
        optim: impl DynOptimizer + 'static,
        grad_clipping: Option<GradientClipping>,
    ) -> Self {
        let stepper = *self.stepper.take().expect(HERE);
        self.stepper = Some(Box::new(Stepper {
            optim: stepper
                .optim
                .with_group(group.clone(), optim, grad_clipping),
            ..stepper
        }));
        self.asked = Asked::default();
        self.groups.push(group);
        self
    }
}

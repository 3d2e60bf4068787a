//! What is done to complete gradients before a step: the scale of the loss is taken off, their norms
//! are looked at, and they are clipped.

use burn::Tensor;
use burn::module::ParamId;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::norm::{GradNorm, coefficient_for, ratio};
use lean_arithmetic::scaling::SharedLossScale;

use super::clipping::{NormClipping, clip_units, scaled};
use super::norm::{SquaredNorms, squared_norm};
use super::record::{Averages, GradientRecord};
use super::scaler::LossScaler;
use crate::error::ReleaseError;
use crate::reduction::Recipients;
use crate::wide::{wide, widened};

/// The gradient transforms of an optimizer.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    clipping: Option<NormClipping>,
    scaler: Option<SharedLossScale>,
    pub(crate) reports_norm: bool,
    pub(crate) stops_at_non_finite: bool,
    /// Whether the optimizer gets gradients in f32 of weights in half precision.
    pub(crate) gives_f32: bool,
    /// Whether the scaler was set within a window of micro-batches: its sums are of another scale.
    is_set_in_window: bool,
    averages: Averages,
    /// Of the pass that has measured, or of the step so far.
    norms: SquaredNorms,
    /// The norm of all gradients of the step that comes next.
    measured: Option<GradNorm>,
}

/// The norm, clip coefficient and loss scale of a finished step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepGradients {
    pub(crate) norm: Option<f64>,
    pub(crate) coefficient: Option<f64>,
    pub(crate) scale: Option<f64>,
}

/// A gradient after its transforms.
#[allow(clippy::large_enum_variant)] // One at a time, on the stack.
pub(crate) enum Transformed<const D: usize> {
    Gradient(Tensor<D>),
    /// It has overflowed: the parameter is not stepped.
    Overflown,
    /// It is not finite, and nothing is stepped from here on.
    NonFinite,
    /// The pass that measured had no gradient of this parameter.
    NotMeasured,
}

impl Pipeline {
    /// The same transforms for another optimizer, between two steps. They share the loss scaler.
    #[cfg(feature = "train")]
    pub(crate) fn between_steps(&self) -> Self {
        Self {
            clipping: self.clipping,
            scaler: self.scaler.clone(),
            reports_norm: self.reports_norm,
            stops_at_non_finite: self.stops_at_non_finite,
            gives_f32: self.gives_f32,
            averages: self.averages.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn set_clipping(&mut self, clipping: NormClipping) {
        self.clipping = Some(clipping);
        // Another rule clips by another norm.
        self.forget_measured();
    }

    pub(crate) fn set_scaler(&mut self, scaler: LossScaler, has_sums: bool) {
        self.scaler = Some(scaler.0.for_optimizer());
        self.is_set_in_window = has_sums;
        self.forget_measured();
    }

    pub(crate) fn has_scaler(&self) -> bool {
        self.scaler.is_some()
    }

    pub(crate) fn needs_two_passes(&self) -> bool {
        self.clipping.is_some_and(|rule| rule.needs_two_passes())
    }

    /// A setting that Burn's optimizer does not have.
    pub(crate) fn not_burns(&self) -> Option<&'static str> {
        match self {
            it if it.clipping.is_some() => Some("clipping by norms"),
            it if it.scaler.is_some() => Some("loss scaler"),
            it if it.stops_at_non_finite => Some("stop at gradients that are not finite"),
            it if it.gives_f32 => Some("gradients in f32"),
            _ => None,
        }
    }

    /// The replicas that need a mean gradient. All of them do if they decide by norms.
    pub(crate) fn recipients(&self, is_measuring: bool) -> Recipients {
        match is_measuring || self.looks_at_norms() {
            true => Recipients::All,
            false => Recipients::Owner,
        }
    }

    pub(crate) fn check_settings(&self) -> Result<(), ReleaseError> {
        out_of_range(self.clipping.as_ref().and_then(NormClipping::out_of_range))?;
        let scaler = self.scaler.as_ref();
        out_of_range(scaler.and_then(SharedLossScale::out_of_range))?;
        match scaler.and_then(SharedLossScale::exhausted) {
            Some(scale) => Err(ReleaseError::LossScale { scale }),
            None => Ok(()),
        }
    }

    /// Refuses gradients that the scaler cannot unscale: of a loss that was not scaled, and sums of
    /// several scales.
    pub(crate) fn check_scaled(&self, has_sums: bool, has_loss: bool) -> Result<(), ReleaseError> {
        match &self.scaler {
            Some(scaler) if has_loss && !scaler.is_asked() => Err(ReleaseError::NotScaled),
            Some(scaler) if has_sums && !scaler.has_scale() => Err(ReleaseError::NotScaled),
            Some(scaler) if has_sums && (self.is_set_in_window || scaler.is_mixed()) => {
                Err(ReleaseError::SeveralScales)
            }
            _ => Ok(()),
        }
    }

    /// Begins a window of micro-batches, whose sums are of one scale so far.
    pub(crate) fn begin_window(&mut self) {
        self.is_set_in_window = false;
        if let Some(scaler) = &self.scaler {
            scaler.begin_window();
        }
    }

    /// Refuses a step whose norm has to be known before, and is not.
    pub(crate) fn check_measured(&self) -> Result<(), ReleaseError> {
        match self.needs_two_passes() && self.measured.is_none() {
            true => Err(ReleaseError::NotMeasured),
            false => Ok(()),
        }
    }

    pub(crate) fn forget_measured(&mut self) {
        self.measured = None;
        self.norms = SquaredNorms::default();
    }

    /// Measures a complete gradient that is not stepped with.
    pub(crate) fn measure(&mut self, param: ParamId, grad: Tensor<1>) {
        let squared = squared_norm(self.unscaled(grad));
        self.norms.push(param, squared);
    }

    /// Ends a pass that has measured, over the parameters of a model in the order of its fields. If the
    /// norm is not finite, the step is over: the scale of the loss falls.
    ///
    /// # Errors
    ///
    /// The parameter whose gradient has no finite norm, unless a loss scale may be the reason.
    pub(crate) fn end_measuring(&mut self, params: &[ParamId]) -> Result<GradNorm, ParamId> {
        if self.scaler.is_none()
            && let Some(param) = self.norms.first_non_finite(params)
        {
            self.forget_measured();
            return Err(param);
        }
        let norm = self.norms.global(params);
        let coefficient = match self.clipping {
            Some(NormClipping::GlobalNorm { max_norm }) => coefficient_for(max_norm, norm),
            Some(NormClipping::ZClip(config)) => {
                ratio(self.averages.zclip.target(&config.rule(), norm), norm)
            }
            _ => 1.0,
        };
        let measured = GradNorm::new(norm, coefficient);
        self.measured = Some(measured);
        Ok(measured)
    }

    /// Ends a step that is not taken, as a gradient has overflowed in the pass that measured. Returns
    /// the scale that it had.
    pub(crate) fn skip_step(&mut self) -> StepGradients {
        self.forget_measured();
        StepGradients {
            scale: self.scaler.as_ref().map(|scaler| scaler.update(true)),
            ..StepGradients::default()
        }
    }

    /// Expects the next loss of the same step to be scaled, too.
    pub(crate) fn end_pass(&self) {
        if let Some(scaler) = &self.scaler {
            scaler.begin_pass();
        }
    }

    /// Whether the norm to clip by has the gradient of a parameter, if there is such a norm.
    fn may_step(&self, param: ParamId) -> bool {
        self.measured.is_none() || !self.needs_two_passes() || self.norms.contains(param)
    }

    /// Whether an ordinary step, which has all gradients, measures them before it changes anything.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.needs_two_passes() || self.must_be_finite()
    }

    /// The gradient to step with. It is complete: the sum over micro-batches, and the mean over
    /// replicas. The optimizer gets it in f32 of a weight in half precision if it `takes_f32`.
    pub(crate) fn transform<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
        takes_f32: bool,
    ) -> Transformed<D> {
        let is_measured = self.norms.contains(param);
        if !self.may_step(param) {
            return Transformed::NotMeasured;
        }
        let given = grad.dtype();
        let grad = self.unscaled(grad);
        if self.looks_at_norms() && !is_measured {
            self.norms.push(param, squared_norm(grad.clone()));
        }
        if self.must_be_finite() && !self.norms.get(param).is_finite() {
            return match self.scaler {
                Some(_) => Transformed::Overflown,
                None => Transformed::NonFinite,
            };
        }
        let (grad, dtype) = match (self.gives_f32, takes_f32) {
            (true, _) => (widened(grad), wide(given)),
            (false, true) => (grad, given),
            (false, false) => (grad, weight.dtype()),
        };
        // Rounded once, after the scale is off and the clip is on.
        Transformed::Gradient(self.clipped(param, weight, grad).cast(dtype))
    }

    fn clipped<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
    ) -> Tensor<D> {
        let coefficient = match (self.clipping, self.measured) {
            (Some(NormClipping::Adaptive(config)), _) => {
                return clip_units(&config, weight.clone(), grad);
            }
            (Some(NormClipping::AutoClip(config)), _) => {
                let norm = self.norms.get(param).norm();
                let auto_clip = &mut self.averages.auto_clip;
                auto_clip.coefficient(&config.rule(), param.val(), norm)
            }
            (_, Some(measured)) => measured.coefficient(),
            (_, None) => 1.0,
        };
        scaled(grad, coefficient)
    }

    /// The gradient without the scale of the loss, if there is one: in 32 bits at least.
    fn unscaled<const D: usize>(&self, grad: Tensor<D>) -> Tensor<D> {
        match &self.scaler {
            Some(scaler) => widened(grad) * scaler.inverse(),
            None => grad,
        }
    }

    fn looks_at_norms(&self) -> bool {
        let rule_asks = matches!(self.clipping, Some(NormClipping::AutoClip(_)));
        let report_asks = self.reports_norm && self.measured.is_none();
        self.must_be_finite() || rule_asks || report_asks
    }

    /// Whether the step with a gradient may be skipped or refused.
    pub(crate) fn must_be_finite(&self) -> bool {
        // A measuring pass has checked all gradients.
        self.measured.is_none() && (self.stops_at_non_finite || self.scaler.is_some())
    }

    /// Whether a gradient that is not finite stops the step.
    pub(crate) fn may_stop(&self) -> bool {
        self.must_be_finite() && self.scaler.is_none()
    }

    /// Ends a step over the parameters of a model, given in the order of its fields, and of those that
    /// were `stepped`.
    pub(crate) fn end_step(
        &mut self,
        params: &[ParamId],
        mut stepped: impl Iterator<Item = ParamId>,
        has_skipped: bool,
    ) -> StepGradients {
        let mut norms = std::mem::take(&mut self.norms);
        let measured = self.measured.take();
        // Some of the gradients alone have no global norm.
        let is_whole =
            !has_skipped && !norms.is_empty() && stepped.all(|param| norms.contains(param));
        let norm = is_whole.then(|| match measured {
            Some(measured) => measured.norm(),
            None => norms.global(params),
        });
        if let (Some(norm), Some(NormClipping::ZClip(config))) = (norm, self.clipping) {
            let rule = config.rule();
            let target = self.averages.zclip.target(&rule, norm);
            self.averages.zclip.observe(&rule, target);
        }
        let has_gradients = has_skipped || !norms.is_empty();
        let scaler = self.scaler.as_ref().filter(|_| has_gradients);
        StepGradients {
            norm,
            coefficient: measured
                .filter(|_| is_whole && self.needs_two_passes())
                .map(|measured| measured.coefficient()),
            scale: scaler.map(|scaler| scaler.update(has_skipped)),
        }
    }

    pub(crate) fn to_record(&self) -> GradientRecord {
        GradientRecord {
            averages: self.averages.clone(),
            loss_scale: self.scaler.as_ref().map(SharedLossScale::to_record),
        }
    }

    pub(crate) fn load_record(&mut self, record: GradientRecord) {
        self.averages = record.averages;
        if let (Some(scaler), Some(scale)) = (&self.scaler, record.loss_scale) {
            scaler.load_record(scale);
        }
    }
}

pub(super) fn out_of_range(setting: Option<OutOfRange>) -> Result<(), ReleaseError> {
    match setting {
        Some(OutOfRange { setting, value }) => Err(ReleaseError::OutOfRange {
            setting: setting.into(),
            value,
        }),
        None => Ok(()),
    }
}

//! The gradient transform of an optimizer.

use burn::Tensor;
use burn::module::ParamId;
use burn_lean_arithmetic::OutOfRange;
use burn_lean_arithmetic::norm::{coefficient_for, ratio};

use super::clipping::{NormClipping, clip_units, scaled};
use super::norm::{SquaredNorms, squared_norm, widened};
use super::record::{Averages, GradientRecord};
use super::scaler::LossScaler;
use crate::optimizer::ReleaseError;
use crate::reduction::Recipients;

/// Takes the scale of the loss off complete gradients, looks at their norms and clips them.
#[derive(Debug, Default)]
pub(crate) struct GradientTransform {
    clipping: Option<NormClipping>,
    scaler: Option<LossScaler>,
    pub(crate) reports_norm: bool,
    pub(crate) stops_at_non_finite: bool,
    averages: Averages,
    step: ThisStep,
}

/// State of the step at hand.
#[derive(Debug, Default)]
struct ThisStep {
    norms: SquaredNorms,
    /// The model is armed for a pass that measures.
    is_measuring: bool,
    measured: Option<GradNorm>,
    stop: Option<Stop>,
}

/// Why no more parameters are stepped inside backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stop {
    /// The gradient of this parameter has no finite norm.
    NonFinite(ParamId),
    NotScaled,
    NotMeasured,
}

/// The norm of the gradients of a step, before the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    norm: f64,
    coefficient: f64,
    /// Whether every gradient is known to have been added up in plain Burn's order.
    pub(crate) is_plain: bool,
}

impl GradNorm {
    /// The global norm, before clipping and without the scale of the loss. Not a number, or
    /// infinite, if a gradient has overflown: then no step is taken.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// Factor for every gradient.
    pub fn coefficient(&self) -> f64 {
        self.coefficient
    }

    /// Whether the gradients can be stepped with.
    pub fn is_finite(&self) -> bool {
        self.norm.is_finite()
    }
}

/// What is known of the gradients of a step at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepGradients {
    pub(crate) norm: Option<f64>,
    pub(crate) coefficient: Option<f64>,
    pub(crate) scale: Option<f64>,
}

impl GradientTransform {
    /// Whether gradients are stepped with as they are, and nobody asks for their norm.
    pub(crate) fn is_idle(&self) -> bool {
        self.clipping.is_none() && !self.looks_at_gradients() && self.step.measured.is_none()
    }

    /// Which replicas need a gradient: each decides by the norms that it has seen.
    pub(crate) fn recipients(&self) -> Recipients {
        match self.step.is_measuring || self.looks_at_gradients() {
            true => Recipients::All,
            false => Recipients::Owner,
        }
    }

    pub(crate) fn set_clipping(&mut self, clipping: NormClipping) {
        self.clipping = Some(clipping);
        // Another rule judges the norm another way.
        self.step.measured = None;
    }

    pub(crate) fn set_scaler(&mut self, scaler: LossScaler) {
        self.scaler = Some(scaler);
        self.step.measured = None;
    }

    pub(crate) fn has_scaler(&self) -> bool {
        self.scaler.is_some()
    }

    pub(crate) fn needs_two_passes(&self) -> bool {
        self.clipping.is_some_and(|rule| rule.needs_two_passes())
    }

    /// What Burn's optimizer has no room for.
    pub(crate) fn not_burns(&self) -> Option<&'static str> {
        match self {
            Self {
                clipping: Some(_), ..
            } => Some("clipping by norms"),
            Self {
                scaler: Some(_), ..
            } => Some("loss scaler"),
            Self {
                stops_at_non_finite: true,
                ..
            } => Some("stop at gradients that are not finite"),
            _ => None,
        }
    }

    /// Why no step can be taken with these settings.
    pub(crate) fn check_settings(&self) -> Result<(), ReleaseError> {
        let clipping = self.clipping.as_ref().and_then(NormClipping::out_of_range);
        out_of_range(clipping)?;
        out_of_range(self.scaler.as_ref().and_then(LossScaler::out_of_range))
    }

    /// Why a model cannot be armed for a step.
    pub(crate) fn check_arm(&self) -> Result<(), ReleaseError> {
        match self.step.measured {
            None if self.needs_two_passes() => Err(ReleaseError::NotMeasured),
            Some(measured) if !measured.is_finite() => Err(ReleaseError::Overflown),
            _ => Ok(()),
        }
    }

    pub(crate) fn measured(&self) -> Option<GradNorm> {
        self.step.measured
    }

    pub(crate) fn is_measuring(&self) -> bool {
        self.step.is_measuring
    }

    /// Whether the pass that measured has found that there is nothing to step with.
    pub(crate) fn is_overflown(&self) -> bool {
        self.step.measured.is_some_and(|norm| !norm.is_finite())
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        self.step.stop
    }

    /// Whether a loss that is to be scaled was not.
    pub(crate) fn lacks_scale(&self) -> bool {
        self.scaler
            .as_ref()
            .is_some_and(|scaler| !scaler.is_asked())
    }

    /// The model is armed for a pass that steps.
    pub(crate) fn begin_step(&mut self) {
        let measured = self.step.measured;
        let norms = std::mem::take(&mut self.step.norms);
        self.step = ThisStep {
            norms: measured.map(|_| norms).unwrap_or_default(),
            measured,
            ..ThisStep::default()
        };
    }

    /// The model is armed for a pass that measures.
    pub(crate) fn begin_measuring(&mut self) {
        self.step = ThisStep {
            is_measuring: true,
            ..ThisStep::default()
        };
    }

    /// The step is not taken.
    pub(crate) fn forget_step(&mut self) {
        self.step = ThisStep::default();
    }

    /// Looks at a complete gradient that is not stepped with in this pass.
    pub(crate) fn measure<const D: usize>(&mut self, param: ParamId, grad: Tensor<D>) {
        let squared = squared_norm(self.unscaled(grad));
        self.step.norms.push(param, squared);
    }

    pub(crate) fn is_measured(&self, param: ParamId) -> bool {
        self.step.norms.contains(param)
    }

    /// All gradients of the step were measured; `params` are those of the model, in the order of
    /// its fields. Returns the parameter whose gradient has no finite norm, where no scale of the
    /// loss can be the reason.
    pub(crate) fn end_measuring(
        &mut self,
        params: &[ParamId],
        is_plain: bool,
    ) -> Result<GradNorm, ParamId> {
        self.check_finite(params)?;
        let norm = self.step.norms.global(params);
        let coefficient = match self.clipping {
            Some(NormClipping::GlobalNorm { max_norm }) => coefficient_for(max_norm, norm),
            Some(NormClipping::ZClip(config)) => {
                ratio(self.averages.zclip.target(&config.rule(), norm), norm)
            }
            _ => 1.0,
        };
        let measured = GradNorm {
            norm,
            coefficient,
            is_plain,
        };
        self.step.measured = Some(measured);
        Ok(measured)
    }

    /// The loss of the second pass is to be scaled, too.
    pub(crate) fn begin_second_pass(&self) {
        if let Some(scaler) = &self.scaler {
            scaler.begin_pass();
        }
    }

    fn check_finite(&mut self, params: &[ParamId]) -> Result<(), ParamId> {
        let must_be_finite = self.stops_at_non_finite || self.needs_two_passes();
        match self.scaler.is_none() && (must_be_finite || self.step.is_measuring) {
            true => self.step.norms.first_non_finite(params).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Whether ordinary gradients are to be measured before `step` changes anything.
    pub(crate) fn looks_at_ordinary(&self) -> bool {
        self.step.measured.is_none() && (self.looks_at_gradients() || self.needs_two_passes())
    }

    /// The ordinary gradients of a step were measured. `is_whole`: there are no others.
    pub(crate) fn end_ordinary(
        &mut self,
        params: &[ParamId],
        is_whole: bool,
    ) -> Result<(), ParamId> {
        let looks_ahead = self.needs_two_passes() || self.must_be_finite();
        match is_whole && looks_ahead && !self.step.norms.is_empty() {
            true => self.end_measuring(params, true).map(|_| ()),
            false => self.check_finite(params),
        }
    }

    /// Whether there is no step with any further gradient, whatever it is.
    pub(crate) fn stops(&mut self) -> bool {
        self.step.stop = self.step.stop.or(match self.step.measured {
            None if self.needs_two_passes() => Some(Stop::NotMeasured),
            _ if self.lacks_scale() => Some(Stop::NotScaled),
            _ => None,
        });
        self.step.stop.is_some() || self.is_overflown()
    }

    /// The gradient to step with; `None` if there is to be no step.
    ///
    /// A gradient is complete when it comes here: the sum of micro-batches, and of replicas.
    pub(crate) fn apply<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
    ) -> Option<Tensor<D>> {
        if self.stops() {
            return None;
        }
        let grad = self.unscaled(grad);
        if self.looks_at_gradients() && !self.step.norms.contains(param) {
            self.step.norms.push(param, squared_norm(grad.clone()));
        }
        if self.must_be_finite() && !self.step.norms.get(param).is_finite() {
            if self.scaler.is_none() {
                self.step.stop = Some(Stop::NonFinite(param));
            }
            return None;
        }
        Some(self.clipped(param, weight, grad))
    }

    fn clipped<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
    ) -> Tensor<D> {
        let coefficient = match (self.clipping, self.step.measured) {
            (Some(NormClipping::Adaptive(config)), _) => {
                return clip_units(&config, weight.clone(), grad);
            }
            (Some(NormClipping::AutoClip(config)), _) => {
                let norm = self.step.norms.get(param).sqrt();
                let auto_clip = &mut self.averages.auto_clip;
                auto_clip.coefficient(&config.rule(), param.val(), norm)
            }
            (_, Some(measured)) => measured.coefficient,
            (_, None) => 1.0,
        };
        scaled(grad, coefficient)
    }

    fn unscaled<const D: usize>(&self, grad: Tensor<D>) -> Tensor<D> {
        let Some(scaler) = &self.scaler else {
            return grad;
        };
        let dtype = grad.dtype();
        let grad = widened(grad) * scaler.inverse();
        match grad.dtype() == dtype {
            true => grad,
            false => grad.cast(dtype),
        }
    }

    fn looks_at_gradients(&self) -> bool {
        let rule_asks = matches!(self.clipping, Some(NormClipping::AutoClip(_)));
        let report_asks = self.reports_norm && self.step.measured.is_none();
        self.must_be_finite() || rule_asks || report_asks
    }

    fn must_be_finite(&self) -> bool {
        // A pass that measures has seen all of them.
        self.step.measured.is_none() && (self.stops_at_non_finite || self.scaler.is_some())
    }

    /// Ends a step over the parameters of a model, given in the order of its fields.
    pub(crate) fn end_step(&mut self, params: &[ParamId], has_skipped: bool) -> StepGradients {
        let mut step = std::mem::take(&mut self.step);
        let is_whole = !has_skipped && !step.norms.is_empty();
        // Of a part of the gradients there is no norm to speak of.
        let norm = is_whole.then(|| match step.measured {
            Some(measured) => measured.norm,
            None => step.norms.global(params),
        });
        if let (Some(norm), Some(NormClipping::ZClip(config))) = (norm, self.clipping) {
            let rule = config.rule();
            let target = self.averages.zclip.target(&rule, norm);
            self.averages.zclip.observe(&rule, target);
        }
        let has_gradients = has_skipped || !step.norms.is_empty();
        let scaler = self.scaler.as_ref().filter(|_| has_gradients);
        StepGradients {
            norm,
            coefficient: step
                .measured
                .filter(|_| is_whole && self.needs_two_passes())
                .map(|measured| measured.coefficient),
            scale: scaler.map(|scaler| scaler.update(has_skipped)),
        }
    }

    pub(crate) fn to_record(&self) -> GradientRecord {
        GradientRecord {
            averages: self.averages.clone(),
            loss_scale: self.scaler.as_ref().map(LossScaler::to_record),
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

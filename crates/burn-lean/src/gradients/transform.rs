//! The gradient transform of an optimizer.

use std::collections::HashSet;

use burn::Tensor;
use burn::module::ParamId;
use lean_arithmetic::OutOfRange;
use lean_arithmetic::norm::{coefficient_for, ratio};
use lean_arithmetic::scaling::SharedLossScale;

use super::clipping::{NormClipping, clip_units, scaled};
use super::norm::{SquaredNorms, squared_norm};
use super::record::{Averages, GradientRecord};
use super::scaler::LossScaler;
use crate::error::ReleaseError;
use crate::reduction::Recipients;
use crate::wide::{wide, widened};

/// Unscales complete gradients, checks their norms and clips them.
#[derive(Debug, Default)]
pub(crate) struct GradientTransform {
    clipping: Option<NormClipping>,
    scaler: Option<SharedLossScale>,
    pub(crate) reports_norm: bool,
    pub(crate) stops_at_non_finite: bool,
    /// Whether the optimizer gets gradients in f32 of weights in half precision.
    pub(crate) gives_f32: bool,
    /// Parameters whose gradients of this step may have been widened here: sums of micro-batches, and
    /// means over replicas.
    widened: HashSet<ParamId>,
    averages: Averages,
    step: ThisStep,
}

#[derive(Debug, Default)]
struct ThisStep {
    norms: SquaredNorms,
    pass: Pass,
    /// Whether there are sums of earlier micro-batches.
    has_sums: bool,
    stop: Option<Stop>,
}

/// What the pass of a step is for, and what is known before it.
#[derive(Clone, Copy, Debug, Default)]
enum Pass {
    /// Steps, and the norm of all gradients is not known.
    #[default]
    Steps,
    /// Measures the norm.
    Measures,
    /// The norm was measured, and a pass that steps is to follow.
    HasMeasured(GradNorm),
    /// Steps with a norm that was measured before.
    StepsWith(GradNorm),
}

impl Pass {
    fn norm(self) -> Option<GradNorm> {
        match self {
            Self::Steps | Self::Measures => None,
            Self::HasMeasured(norm) | Self::StepsWith(norm) => Some(norm),
        }
    }

    fn is_measuring(self) -> bool {
        matches!(self, Self::Measures | Self::HasMeasured(_))
    }

    fn with_norm(self, norm: GradNorm) -> Self {
        match self.is_measuring() {
            true => Self::HasMeasured(norm),
            false => Self::StepsWith(norm),
        }
    }

    fn without_norm(self) -> Self {
        match self.is_measuring() {
            true => Self::Measures,
            false => Self::Steps,
        }
    }
}

/// Why no more parameters are stepped inside backward.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The gradient of this parameter has no finite norm.
    NonFinite(ParamId),
    Refused(ReleaseError),
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
    /// infinite, if a gradient has overflowed: then no step is taken.
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

/// The norm, clip coefficient and loss scale of a finished step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepGradients {
    pub(crate) norm: Option<f64>,
    pub(crate) coefficient: Option<f64>,
    pub(crate) scale: Option<f64>,
}

impl GradientTransform {
    /// The same transform for another optimizer, between two steps. They share the loss scaler.
    #[cfg(feature = "train")]
    pub(crate) fn between_steps(&self) -> Self {
        Self {
            clipping: self.clipping,
            scaler: self.scaler.clone(),
            reports_norm: self.reports_norm,
            stops_at_non_finite: self.stops_at_non_finite,
            gives_f32: self.gives_f32,
            averages: self.averages.clone(),
            widened: HashSet::new(),
            step: ThisStep::default(),
        }
    }

    /// The replicas that need a gradient. All of them do if they decide by norms.
    pub(crate) fn recipients(&self) -> Recipients {
        match self.is_measuring() || self.looks_at_gradients() {
            true => Recipients::All,
            false => Recipients::Owner,
        }
    }

    pub(crate) fn set_clipping(&mut self, clipping: NormClipping) {
        self.clipping = Some(clipping);
        // The measured norm was clipped by the old rule.
        self.step.pass = self.step.pass.without_norm();
    }

    pub(crate) fn set_scaler(&mut self, scaler: LossScaler) {
        self.scaler = Some(scaler.0.for_optimizer());
        self.step.pass = self.step.pass.without_norm();
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
            Self {
                gives_f32: true, ..
            } => Some("gradients in f32"),
            _ => None,
        }
    }

    /// Checks that a step can be taken with these settings.
    pub(crate) fn check_settings(&self) -> Result<(), ReleaseError> {
        let clipping = self.clipping.as_ref().and_then(NormClipping::out_of_range);
        out_of_range(clipping)?;
        let scaler = self.scaler.as_ref();
        out_of_range(scaler.and_then(SharedLossScale::out_of_range))?;
        match scaler.and_then(SharedLossScale::exhausted) {
            Some(scale) => Err(ReleaseError::LossScale { scale }),
            None => Ok(()),
        }
    }

    /// Checks that a model can be armed for a step.
    pub(crate) fn check_arm(&self) -> Result<(), ReleaseError> {
        match self.measured() {
            None if self.needs_two_passes() => Err(ReleaseError::NotMeasured),
            Some(measured) if !measured.is_finite() => Err(ReleaseError::Overflown),
            _ => Ok(()),
        }
    }

    /// The norm of all gradients, where it is known before the step.
    pub(crate) fn measured(&self) -> Option<GradNorm> {
        self.step.pass.norm()
    }

    /// Whether the model is armed to measure, also after it has.
    pub(crate) fn is_measuring(&self) -> bool {
        self.step.pass.is_measuring()
    }

    /// Whether the measuring pass has found a norm that is not finite.
    pub(crate) fn is_overflown(&self) -> bool {
        self.measured().is_some_and(|norm| !norm.is_finite())
    }

    /// Whether a measuring pass has dropped the gradient of a step that is skipped.
    pub(crate) fn is_dropped(&self, param: ParamId) -> bool {
        self.is_overflown() && self.is_measured(param)
    }

    pub(crate) fn stop(&self) -> Option<&Stop> {
        self.step.stop.as_ref()
    }

    /// Refuses the step that has begun, and steps no more parameters in it.
    pub(crate) fn refuse_step(&mut self, error: ReleaseError) {
        self.step.stop.get_or_insert(Stop::Refused(error));
    }

    /// Notes whether gradients are added to sums of earlier micro-batches.
    pub(crate) fn set_has_sums(&mut self, has_sums: bool) {
        self.step.has_sums = has_sums;
    }

    pub(crate) fn has_sums(&self) -> bool {
        self.step.has_sums
    }

    /// Refuses gradients that the scaler cannot unscale: of a loss that was not scaled, and sums of
    /// several scales.
    pub(crate) fn check_scaled(&self) -> Result<(), ReleaseError> {
        match &self.scaler {
            Some(scaler) if !scaler.is_asked() => Err(ReleaseError::NotScaled),
            Some(scaler) if self.step.has_sums && scaler.is_mixed() => {
                Err(ReleaseError::SeveralScales)
            }
            _ => Ok(()),
        }
    }

    /// Begins a pass that steps.
    pub(crate) fn begin_step(&mut self) {
        let step = std::mem::take(&mut self.step);
        if let Some(norm) = step.pass.norm() {
            self.step.norms = step.norms;
            self.step.pass = Pass::StepsWith(norm);
        }
    }

    /// Begins a pass that measures.
    pub(crate) fn begin_measuring(&mut self) {
        self.step = ThisStep {
            pass: Pass::Measures,
            ..ThisStep::default()
        };
    }

    /// Drops the state of a step that is not taken.
    pub(crate) fn forget_step(&mut self) {
        self.step = ThisStep::default();
        self.widened.clear();
    }

    /// Measures a complete gradient in a pass that does not step. One that comes after the norm is
    /// known is not in it.
    pub(crate) fn measure<const D: usize>(&mut self, param: ParamId, grad: Tensor<D>) {
        if self.measured().is_some() {
            return;
        }
        let squared = squared_norm(self.unscaled(grad));
        self.step.norms.push(param, squared);
    }

    pub(crate) fn is_measured(&self, param: ParamId) -> bool {
        self.step.norms.contains(param)
    }

    /// Forgets the norms of all other parameters.
    pub(crate) fn keep_measured(&mut self, is_kept: impl Fn(ParamId) -> bool) {
        self.step.norms.retain(is_kept);
    }

    /// Ends the measuring of a step, of which `params` are the parameters of the model in the order
    /// of its fields. Returns the parameter whose gradient has no finite norm, unless a loss scale
    /// may be the reason.
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
        self.step.pass = self.step.pass.with_norm(measured);
        Ok(measured)
    }

    /// Expects the loss of the second pass to be scaled, too.
    pub(crate) fn begin_second_pass(&self) {
        if let Some(scaler) = &self.scaler {
            scaler.begin_pass();
        }
    }

    fn check_finite(&mut self, params: &[ParamId]) -> Result<(), ParamId> {
        let must_be_finite = self.stops_at_non_finite || self.needs_two_passes();
        match self.scaler.is_none() && (must_be_finite || self.is_measuring()) {
            true => self.step.norms.first_non_finite(params).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Whether `step` must measure ordinary gradients before it changes anything.
    pub(crate) fn looks_at_ordinary(&self) -> bool {
        self.measured().is_none() && (self.looks_at_gradients() || self.needs_two_passes())
    }

    /// Ends the measuring of the ordinary gradients of a step. `is_whole` says that there are no
    /// others.
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

    /// Whether no gradient can be stepped with from that of this parameter on.
    pub(crate) fn stops_before(&mut self, param: ParamId) -> bool {
        if self.step.stop.is_none() {
            let refused = match self.measured() {
                None if self.needs_two_passes() => Err(ReleaseError::NotMeasured),
                Some(_) if self.is_unmeasured(param) => Err(ReleaseError::NotMeasured),
                _ => self.check_scaled(),
            };
            self.step.stop = refused.err().map(Stop::Refused);
        }
        self.step.stop.is_some() || self.is_overflown()
    }

    /// Whether the pass that measures had no gradient of a parameter that has one now.
    pub(crate) fn is_unmeasured(&self, param: ParamId) -> bool {
        self.needs_two_passes() && self.measured().is_some() && !self.is_measured(param)
    }

    /// Returns the gradient to step with; `None` skips the step.
    ///
    /// The gradient is complete: the sum over micro-batches and the mean over replicas.
    pub(crate) fn apply<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
    ) -> Option<Tensor<D>> {
        if self.stops_before(param) {
            return None;
        }
        let dtype = grad.dtype();
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
        let (grad, dtype) = match self.gives_f32 {
            true => (widened(grad), wide(dtype)),
            false if self.widened.contains(&param) => (grad, weight.dtype()),
            false => (grad, dtype),
        };
        // Rounded once, after the scale is off and the clip is on.
        Some(self.clipped(param, weight, grad).cast(dtype))
    }

    /// Notes gradients that are given to the optimizer in the type of the weight.
    pub(crate) fn note_widened(&mut self, params: impl IntoIterator<Item = ParamId>) {
        self.widened.extend(params);
    }

    fn clipped<const D: usize>(
        &mut self,
        param: ParamId,
        weight: &Tensor<D>,
        grad: Tensor<D>,
    ) -> Tensor<D> {
        let coefficient = match (self.clipping, self.measured()) {
            (Some(NormClipping::Adaptive(config)), _) => {
                return clip_units(&config, weight.clone(), grad);
            }
            (Some(NormClipping::AutoClip(config)), _) => {
                let norm = self.step.norms.get(param).norm();
                let auto_clip = &mut self.averages.auto_clip;
                auto_clip.coefficient(&config.rule(), param.val(), norm)
            }
            (_, Some(measured)) => measured.coefficient,
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

    fn looks_at_gradients(&self) -> bool {
        let rule_asks = matches!(self.clipping, Some(NormClipping::AutoClip(_)));
        let report_asks = self.reports_norm && self.measured().is_none();
        self.must_be_finite() || rule_asks || report_asks
    }

    /// Whether the step with a gradient may be skipped.
    pub(crate) fn must_be_finite(&self) -> bool {
        // A measuring pass has checked all gradients.
        self.measured().is_none() && (self.stops_at_non_finite || self.scaler.is_some())
    }

    /// Ends a step over the parameters of a model, given in the order of its fields, and of those that
    /// were `stepped`.
    pub(crate) fn end_step(
        &mut self,
        params: &[ParamId],
        mut stepped: impl Iterator<Item = ParamId>,
        has_skipped: bool,
    ) -> StepGradients {
        let mut step = std::mem::take(&mut self.step);
        self.widened.clear();
        let measured = step.pass.norm();
        // Some of the gradients alone have no global norm.
        let is_measured = |param| step.norms.contains(param);
        let is_whole = !has_skipped && !step.norms.is_empty() && stepped.all(is_measured);
        let norm = is_whole.then(|| match measured {
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
            coefficient: measured
                .filter(|_| is_whole && self.needs_two_passes())
                .map(|measured| measured.coefficient),
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

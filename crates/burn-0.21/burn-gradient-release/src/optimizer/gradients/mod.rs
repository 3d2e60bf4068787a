//! The gradient transform: clipping, loss scaling and norms, between a gradient and its step.

mod clipping;
mod norm;
mod record;
mod scaler;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use burn::{
    module::ParamId,
    tensor::{Tensor, backend::Backend},
};

use lean_arithmetic::{
    OutOfRange,
    norm::{Squares, coefficient_for, global_norm, ratio},
    scaling::SharedLossScale,
};

use self::{
    clipping::{clip_units, scaled},
    norm::{SquaredNorms, squared_norm, squares},
    record::Averages,
};
use crate::{error::ReleaseError, util::lock::lock};

pub use clipping::{AdaptiveClippingConfig, AutoClipConfig, NormClipping, ZClipConfig};
pub use lean_arithmetic::norm::GradNorm;
pub(super) use norm::widened;
pub use record::GradientRecord;
pub use scaler::{LossScaler, LossScalerConfig, LossScalerRecord};

/// Settings for gradients, and the state kept of them from step to step.
#[derive(Clone, Debug, Default)]
pub(super) struct GradientPolicy {
    pub(super) clipping: Option<NormClipping>,
    pub(super) scaler: Option<SharedLossScale>,
    pub(super) measures_norm: bool,
    pub(super) stops_at_non_finite: bool,
    averages: Arc<Mutex<Averages>>,
}

impl GradientPolicy {
    pub(super) fn needs_two_passes(&self) -> bool {
        self.clipping.is_some_and(|rule| rule.needs_two_passes())
    }

    /// The first setting that is out of range, if there is one.
    pub(super) fn out_of_range(&self) -> Option<OutOfRange> {
        let clipping = self.clipping.as_ref().and_then(NormClipping::out_of_range);
        clipping.or_else(|| self.scaler.as_ref()?.out_of_range())
    }

    /// Refuses steps that the scaler would all skip.
    pub(super) fn check_scale(&self) -> Result<(), ReleaseError> {
        let exhausted = self.scaler.as_ref().and_then(SharedLossScale::exhausted);
        exhausted.map_or(Ok(()), |scale| Err(ReleaseError::LossScale { scale }))
    }

    /// Whether a step that has all gradients looks at them before the first parameter is stepped.
    pub(super) fn looks_ahead(&self) -> bool {
        self.needs_two_passes() || self.stops_at_non_finite || self.scaler.is_some()
    }

    /// Refuses gradients that the scaler cannot unscale: of a loss that was not scaled, and sums of
    /// several scales.
    pub(super) fn check_scaled(&self, has_sums: bool) -> Result<(), ReleaseError> {
        match &self.scaler {
            Some(scaler) if !scaler.is_asked() => Err(ReleaseError::NotScaled),
            Some(scaler) if has_sums && scaler.is_mixed() => Err(ReleaseError::SeveralScales),
            _ => Ok(()),
        }
    }

    /// Called between the two passes of a step.
    pub(super) fn begin_second_pass(&self) {
        if let Some(scaler) = &self.scaler {
            scaler.begin_pass();
        }
    }

    /// A copy with a state of its own.
    pub(super) fn fork(&self) -> Self {
        let averages = lock(&self.averages).clone();
        Self {
            averages: Arc::new(Mutex::new(averages)),
            scaler: self.scaler.clone().map(SharedLossScale::for_copy),
            ..self.clone()
        }
    }

    pub(super) fn to_record(&self) -> GradientRecord {
        GradientRecord {
            averages: lock(&self.averages).clone(),
            loss_scaler: self
                .scaler
                .as_ref()
                .map(|scaler| LossScalerRecord(scaler.to_record())),
        }
    }

    pub(super) fn load_record(&self, record: GradientRecord) {
        *lock(&self.averages) = record.averages;
        if let (Some(scaler), Some(record)) = (&self.scaler, record.loss_scaler) {
            scaler.load_record(record.0);
        }
    }

    /// The transform for the gradients of one step. `measured` is the result of a first pass.
    pub(super) fn transform<B: Backend>(&self, measured: Option<GradNorm>) -> GradientTransform<B> {
        let coefficient = measured.map(|measured| measured.coefficient());
        GradientTransform {
            policy: self.clone(),
            coefficient: coefficient.filter(|coefficient| *coefficient < 1.0),
            measured,
            norms: SquaredNorms::default(),
            has_sums: AtomicBool::new(false),
            stop: Mutex::new(None),
        }
    }

    /// The global norm of gradients with these squared norms, and the factor for them.
    fn judge(&self, squared: &[(ParamId, Squares)]) -> GradNorm {
        let norm = global_norm(squared.iter().map(|(_, squared)| *squared));
        let coefficient = match self.clipping {
            Some(NormClipping::GlobalNorm { max_norm }) => coefficient_for(max_norm, norm),
            Some(NormClipping::ZClip(config)) => ratio(
                lock(&self.averages).zclip.target(&config.rule(), norm),
                norm,
            ),
            _ => 1.0,
        };
        GradNorm::new(norm, coefficient)
    }

    /// Adds the norm of a step to the averages.
    fn observe(&self, norm: f64) {
        let Some(NormClipping::ZClip(config)) = self.clipping else {
            return;
        };
        if !norm.is_finite() {
            return;
        }
        let mut averages = lock(&self.averages);
        let target = averages.zclip.target(&config.rule(), norm);
        averages.zclip.observe(&config.rule(), target);
    }
}

/// Transform for the gradients of one optimizer step: unscales, measures and clips them.
pub(super) struct GradientTransform<B: Backend> {
    policy: GradientPolicy,
    coefficient: Option<f64>,
    measured: Option<GradNorm>,
    norms: SquaredNorms<B>,
    /// Whether there are sums of earlier micro-batches.
    has_sums: AtomicBool,
    stop: Mutex<Option<Stop>>,
}

/// Why no more parameters are stepped inside backward.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The gradient of this parameter is not finite.
    NonFinite(ParamId),
    /// The gradients cannot be unscaled.
    Refused(ReleaseError),
}

/// Why a gradient is not stepped with.
pub(super) enum NotStepped {
    /// The gradient has overflown.
    Skipped,
    /// No more gradients are stepped with.
    Stopped,
}

/// Norm, factor and loss scale of a finished step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GradientSummary {
    pub(super) norm: Option<f64>,
    pub(super) coefficient: Option<f64>,
    pub(super) scale: Option<f64>,
}

impl<B: Backend> GradientTransform<B> {
    /// Measures a gradient in the first of two passes.
    pub(super) fn measure<const D: usize>(&self, param: ParamId, grad: Tensor<B, D>) {
        self.norms.push(param, squared_norm(self.unscaled(grad)));
    }

    pub(super) fn is_measured(&self, param: ParamId) -> bool {
        self.norms.contains(param)
    }

    /// Ends the first of two passes over the parameters of a model. Also returns the first
    /// parameter whose gradient has no finite norm.
    pub(super) fn end_measuring(
        &self,
        params: impl IntoIterator<Item = ParamId>,
    ) -> (GradNorm, Option<ParamId>) {
        let squared = self.norms.read(params);
        let culprit = squared.iter().find(|(_, squared)| !squared.is_finite());
        (
            self.policy.judge(&squared),
            culprit.map(|(param, _)| *param),
        )
    }

    /// The gradient to step with. `clips_alone` is false if no rule may clip this gradient by
    /// itself.
    pub(super) fn apply<const D: usize>(
        &self,
        param: ParamId,
        weight: &Tensor<B, D>,
        grad: Tensor<B, D>,
        clips_alone: bool,
    ) -> Result<Tensor<B, D>, NotStepped> {
        if let Err(error) = self.check_scaled() {
            self.stop_for(Stop::Refused(error));
        }
        if self.stop().is_some() {
            return Err(NotStepped::Stopped);
        }
        let dtype = grad.dtype();
        let grad = self.unscaled(grad);
        let squared = self.look_at(param, &grad)?;
        let grad = scaled(grad, self.coefficient.unwrap_or(1.0));
        let grad = match clips_alone {
            true => self.clipped_alone(param, weight, grad, squared),
            false => grad,
        };
        // Rounded once, after the scale is off and the clip is on.
        Ok(grad.cast(dtype))
    }

    fn clipped_alone<const D: usize>(
        &self,
        param: ParamId,
        weight: &Tensor<B, D>,
        grad: Tensor<B, D>,
        squared: Option<Tensor<B, 1>>,
    ) -> Tensor<B, D> {
        match (self.policy.clipping, squared) {
            (Some(NormClipping::Adaptive(config)), _) => clip_units(&config, weight.clone(), grad),
            (Some(NormClipping::AutoClip(config)), Some(squared)) => {
                let norm = squares(&squared).norm();
                let mut averages = lock(&self.policy.averages);
                let auto_clip = &mut averages.auto_clip;
                scaled(
                    grad,
                    auto_clip.coefficient(&config.rule(), param.val(), norm),
                )
            }
            _ => grad,
        }
    }

    /// The gradient without the scale of the loss, if there is one: in 32 bits at least.
    fn unscaled<const D: usize>(&self, grad: Tensor<B, D>) -> Tensor<B, D> {
        match &self.policy.scaler {
            Some(scaler) => widened(grad) * scaler.inverse(),
            None => grad,
        }
    }

    /// Whether norms are needed.
    pub(super) fn looks_at_gradients(&self) -> bool {
        let rule_asks = matches!(self.policy.clipping, Some(NormClipping::AutoClip(_)));
        let report_asks = self.policy.measures_norm && self.measured.is_none();
        self.must_be_finite() || rule_asks || report_asks
    }

    fn must_be_finite(&self) -> bool {
        // A first pass has measured all of them.
        let policy = &self.policy;
        self.measured.is_none() && (policy.stops_at_non_finite || policy.scaler.is_some())
    }

    /// Notes the norm of a gradient, if norms are needed.
    fn look_at<const D: usize>(
        &self,
        param: ParamId,
        grad: &Tensor<B, D>,
    ) -> Result<Option<Tensor<B, 1>>, NotStepped> {
        if !self.looks_at_gradients() {
            return Ok(None);
        }
        let policy = &self.policy;
        let squared = squared_norm(grad.clone());
        if self.must_be_finite() && !squares(&squared).is_finite() {
            if policy.scaler.is_some() {
                return Err(NotStepped::Skipped);
            }
            self.stop_for(Stop::NonFinite(param));
            return Err(NotStepped::Stopped);
        }
        self.norms.push(param, squared.clone());
        Ok(Some(squared))
    }

    /// Whether gradients are checked to be finite before the first step.
    pub(super) fn wants_finite(&self) -> bool {
        let asks = self.policy.stops_at_non_finite && self.policy.scaler.is_none();
        asks && self.measured.is_none()
    }

    pub(super) fn admits<const D: usize>(&self, grad: &Tensor<B, D>) -> bool {
        squares(&squared_norm(grad.clone())).is_finite()
    }

    /// Whether a gradient has overflown in a first pass.
    pub(super) fn is_overflown(&self) -> bool {
        self.measured.is_some_and(|measured| !measured.is_finite())
    }

    /// Notes that gradients are added to sums of earlier micro-batches.
    pub(super) fn note_sums(&self) {
        self.has_sums.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_sums(&self) -> bool {
        self.has_sums.load(Ordering::Relaxed)
    }

    /// Refuses gradients that the scaler cannot unscale.
    pub(super) fn check_scaled(&self) -> Result<(), ReleaseError> {
        self.policy.check_scaled(self.has_sums())
    }

    fn stop_for(&self, stop: Stop) {
        lock(&self.stop).get_or_insert(stop);
    }

    /// What has stopped the step, if anything.
    pub(super) fn stop(&self) -> Option<Stop> {
        lock(&self.stop).clone()
    }

    /// Ends the step over the parameters of a model. `has_skipped` says whether a gradient has
    /// overflown, `had_gradients` whether one arrived at all.
    pub(super) fn finish(
        &self,
        params: impl IntoIterator<Item = ParamId>,
        has_skipped: bool,
        had_gradients: bool,
    ) -> GradientSummary {
        let norm = match self.measured {
            Some(measured) => Some(measured.norm()),
            None => {
                let squared = self.norms.read(params);
                (!squared.is_empty())
                    .then(|| global_norm(squared.iter().map(|(_, squared)| *squared)))
            }
        };
        // A norm of some of the gradients alone is not reported.
        let norm = norm.filter(|_| had_gradients && !has_skipped);
        if let Some(norm) = norm {
            self.policy.observe(norm);
        }
        // A step without gradients says nothing about the scale.
        let scaler = self.policy.scaler.as_ref().filter(|_| had_gradients);
        let clips_all = matches!(
            self.policy.clipping,
            Some(NormClipping::GlobalNorm { .. } | NormClipping::ZClip(_))
        );
        GradientSummary {
            norm,
            coefficient: clips_all.then(|| self.coefficient.unwrap_or(1.0)),
            scale: scaler.map(|scaler| scaler.update(has_skipped)),
        }
    }
}

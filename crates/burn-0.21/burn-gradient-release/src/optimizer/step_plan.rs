//! Settings of one optimizer step: the rate of each parameter, and the transform of its gradient.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::ParamId,
    optim::{LearningRate, SimpleOptimizer},
    tensor::{Tensor, backend::Backend},
};

use super::{
    gradients::{GradientTransform, NotStepped},
    stepper::{Stepper, from_float},
};
use crate::{
    ReleaseBackend,
    planner::trace::Tracer,
    slot::reduction::{GradientReduction, InFlight, Recipients, ReductionError, agree},
    slot::{Inspector, Release, Step},
};

/// Rates, groups and gradient transform of one optimizer step.
pub(super) struct StepPlan<B: Backend> {
    pub(super) purpose: Purpose,
    pub(super) learning_rate: LearningRate,
    /// Settings of the parameters that differ from the rest.
    pub(super) own: HashMap<ParamId, Own>,
    pub(super) transform: GradientTransform<B>,
    /// Runs before the transform.
    pub(super) reduction: Option<Arc<dyn GradientReduction<B>>>,
    /// The tracer that splits forward passes into segments, if any.
    pub(super) tracer: Option<Arc<Tracer>>,
}

/// Purpose of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The pass steps the parameters.
    Step,
    /// The pass measures the norm of the gradients.
    MeasureNorm,
}

/// Group and rate of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Own {
    pub(super) learning_rate: LearningRate,
    /// The group of the optimizer that it is in.
    pub(super) group: Option<usize>,
    pub(super) is_frozen: bool,
}

impl<B: Backend> StepPlan<B> {
    pub(super) fn is_frozen(&self, param: ParamId) -> bool {
        self.of(param).is_frozen
    }

    fn of(&self, param: ParamId) -> Own {
        self.own.get(&param).copied().unwrap_or(Own {
            learning_rate: self.learning_rate,
            group: None,
            is_frozen: false,
        })
    }

    /// The replicas that need the reduced gradients.
    pub(super) fn recipients(&self) -> Recipients {
        match self.purpose == Purpose::Step && !self.transform.looks_at_gradients() {
            true => Recipients::Owner,
            false => Recipients::All,
        }
    }

    /// The queue that reduces the gradients of a backward pass, if there are replicas.
    pub(super) fn in_flight(&self) -> Option<Arc<InFlight<B>>> {
        let reduction = self.reduction.clone()?;
        // Where activations are recomputed, replicas may complete their gradients in other orders.
        let is_recomputed = self.tracer.is_some();
        let recipients = self.recipients();
        Some(Arc::new(InFlight::new(
            reduction,
            recipients,
            is_recomputed,
        )))
    }

    /// The mean of a gradient over all replicas. `None` if this replica does not need it.
    pub(super) fn reduce<const D: usize>(
        &self,
        param: ParamId,
        grad: Tensor<B, D>,
        recipients: Recipients,
    ) -> Result<Option<Tensor<B, D>>, ReductionError> {
        let Some(reduction) = &self.reduction else {
            return Ok(Some(grad));
        };
        let pending = reduction.begin(param, grad.into_primitive().tensor(), recipients)?;
        Ok(pending.wait()?.map(from_float))
    }

    /// Whether the gradient of a parameter must be finite, and no pass has measured it.
    pub(super) fn wants_finite(&self, param: ParamId) -> bool {
        let is_step = self.purpose == Purpose::Step;
        is_step && self.transform.wants_finite() && !self.is_frozen(param)
    }

    /// Checks before a step whether a gradient is finite.
    pub(super) fn admits<const D: usize>(
        &self,
        param: ParamId,
        grad: Tensor<B, D>,
    ) -> Result<bool, ReductionError> {
        let grad = self.reduce(param, grad, Recipients::All)?;
        Ok(grad.is_none_or(|grad| self.transform.admits(&grad)))
    }

    /// The parameters that did not get the rate of the step.
    pub(super) fn other_rates(&self) -> HashMap<ParamId, LearningRate> {
        let own = self.own.iter();
        own.map(|(param, own)| (*param, own.learning_rate))
            .filter(|(_, rate)| rate.to_bits() != self.learning_rate.to_bits())
            .collect()
    }
}

/// Steps the parameters of one optimizer step.
pub(super) struct Stepping<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    pub(super) stepper: Stepper<O, B>,
    pub(super) plan: Arc<StepPlan<B::InnerBackend>>,
}

impl<O, B> Stepping<O, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: ReleaseBackend,
{
    /// Steps one parameter with its complete gradient.
    pub(super) fn step<const D: usize>(
        &self,
        param: ParamId,
        weight: Tensor<B::InnerBackend, D>,
        grad: Option<Tensor<B::InnerBackend, D>>,
    ) -> Step<Tensor<B::InnerBackend, D>> {
        let Some(grad) = grad else {
            return Step::Taken(self.weight_from_owner(param, weight));
        };
        let own = self.plan.of(param);
        let device = grad.device();
        let weight = if weight.device() == device {
            weight
        } else {
            weight.to_device(&device)
        };
        let settings = self.stepper.settings(own.group);
        let transformed = self
            .plan
            .transform
            .apply(param, &weight, grad, settings.clips_by_norm);
        match transformed {
            Ok(grad) => {
                let is_owner =
                    |reduction: &Arc<dyn GradientReduction<_>>| reduction.is_owner(param);
                let weight = match self.plan.reduction.as_ref().is_none_or(is_owner) {
                    true => self
                        .stepper
                        .step(settings, own.learning_rate, param, weight, grad),
                    false => weight,
                };
                Step::Taken(self.weight_from_owner(param, weight))
            }
            Err(NotStepped::Skipped) => Step::Skipped(weight),
            Err(NotStepped::Stopped) => Step::Stopped(weight),
        }
    }

    fn weight_from_owner<const D: usize>(
        &self,
        param: ParamId,
        weight: Tensor<B::InnerBackend, D>,
    ) -> Tensor<B::InnerBackend, D> {
        match &self.plan.reduction {
            Some(reduction) => {
                let weight = weight.into_primitive().tensor();
                from_float(agree(reduction.weight_from_owner(param, weight)))
            }
            None => weight,
        }
    }

    /// The step as a function of primitives, for the tape.
    pub(super) fn release<const D: usize>(
        self: &Arc<Self>,
        param: ParamId,
    ) -> Release<B::InnerBackend> {
        let stepping = self.clone();
        Box::new(move |weight, grad| {
            let step = stepping.step::<D>(param, from_float(weight), grad.map(from_float));
            step.map(|weight| weight.into_primitive().tensor())
        })
    }

    /// The measuring of a gradient in the first of two passes, as a function of primitives.
    pub(super) fn measure<const D: usize>(
        self: &Arc<Self>,
        param: ParamId,
    ) -> Inspector<B::InnerBackend> {
        let plan = self.plan.clone();
        Box::new(move |grad| plan.transform.measure::<D>(param, from_float(grad)))
    }
}

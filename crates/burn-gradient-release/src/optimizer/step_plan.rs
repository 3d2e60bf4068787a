//! One optimizer step: with which rate each parameter is stepped, and what is done to its gradient.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::ParamId,
    optim::{LearningRate, SimpleOptimizer},
    tensor::{Tensor, backend::Backend},
};

use super::{
    gradients::{NotStepped, Treatment},
    stepper::{Stepper, from_float},
};
use crate::{
    ReleaseBackend,
    slot::{Measure, Release, Step},
};

/// What holds for the parameters of one optimizer step.
pub(super) struct StepPlan<B: Backend> {
    pub(super) purpose: Purpose,
    pub(super) learning_rate: LearningRate,
    /// Of the parameters that differ from the rest.
    pub(super) own: HashMap<ParamId, Own>,
    pub(super) treatment: Treatment<B>,
}

/// What a backward pass is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To step.
    Step,
    /// To measure the norm of the gradients.
    Measure,
}

/// What holds for one parameter.
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
        grad: Tensor<B::InnerBackend, D>,
    ) -> Step<Tensor<B::InnerBackend, D>> {
        let own = self.plan.of(param);
        let device = grad.device();
        let weight = if weight.device() == device {
            weight
        } else {
            weight.to_device(&device)
        };
        let rule = self.stepper.rule(own.group);
        let treated = self
            .plan
            .treatment
            .apply(param, &weight, grad, rule.clips_by_norm);
        match treated {
            Ok(grad) => {
                Step::Taken(
                    self.stepper
                        .step(rule, own.learning_rate, param, weight, grad),
                )
            }
            Err(NotStepped::Skipped) => Step::Skipped(weight),
            Err(NotStepped::Stopped) => Step::Stopped(weight),
        }
    }

    /// The same as a function of primitives, for the tape.
    pub(super) fn release<const D: usize>(
        self: &Arc<Self>,
        param: ParamId,
    ) -> Release<B::InnerBackend> {
        let stepping = self.clone();
        Box::new(move |weight, grad| {
            let step = stepping.step::<D>(param, from_float(weight), from_float(grad));
            step.map(|weight| weight.into_primitive().tensor())
        })
    }

    /// Looks at a gradient of the first of two passes, as a function of primitives.
    pub(super) fn measure<const D: usize>(
        self: &Arc<Self>,
        param: ParamId,
    ) -> Measure<B::InnerBackend> {
        let plan = self.plan.clone();
        Box::new(move |grad| plan.treatment.measure::<D>(param, from_float(grad)))
    }
}

//! The step of a single parameter: Burn's own.

use std::sync::{Arc, Mutex, MutexGuard};

use burn::{
    grad_clipping::GradientClipping,
    module::{Param, ParamId},
    optim::{
        LearningRate, Optimizer, SimpleOptimizer, adaptor::OptimizerAdaptor, record::AdaptorRecord,
    },
    tensor::{
        Tensor, TensorPrimitive,
        backend::{AutodiffBackend, Backend},
        ops::FloatTensor,
    },
};

use super::{
    gradients::{GradientPolicy, widened},
    group_options::{GroupOptions, StepSettings},
};
use crate::{
    groups::{ModuleLearningRates, ParamGroup},
    planner::trace::Tracer,
    slot::reduction::{GradientReduction, ReductionError},
    util::lock::lock,
};

/// Burn's record of an optimizer, `HashMap<ParamId, AdaptorRecord<O, B>>`: the state of each
/// parameter that was ever stepped. It is the same for every module.
pub(crate) type Records<O, B> =
    <OptimizerAdaptor<O, AnyModule<B>, B> as Optimizer<AnyModule<B>, B>>::Record;

type AnyModule<B> = Param<Tensor<B, 1>>;

/// A [`SimpleOptimizer`] with gradient clipping and the states of its parameters.
///
/// Clones share the states: the steps inside backward and the optimizer write to the same ones.
#[derive(Clone)]
pub(crate) struct Stepper<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
{
    pub(crate) optim: O,
    pub(crate) grad_clipping: Option<GradientClipping>,
    /// The tracer that splits forward passes into segments, if any.
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(super) gradients: GradientPolicy,
    /// Reduces gradients over the replicas, if the model has any.
    pub(super) reduction: Option<Arc<dyn GradientReduction<B::InnerBackend>>>,
    /// Groups as they were added: the last one that matches a parameter is its group.
    pub(super) groups: Vec<(ParamGroup, GroupOptions<O>)>,
    /// Rates that differ from group to group.
    pub(super) learning_rates: Option<ModuleLearningRates>,
    records: Arc<Mutex<Records<O, B>>>,
    /// Completes the next record.
    completion: Arc<Mutex<Option<Completion<O, B>>>>,
}

/// Adds the states that are elsewhere to a record.
pub(super) type Completion<O, B> =
    Box<dyn FnOnce(&mut Records<O, B>) -> Result<(), ReductionError> + Send>;

impl<O, B> Stepper<O, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: AutodiffBackend,
{
    pub(crate) fn new(
        optim: O,
        grad_clipping: Option<GradientClipping>,
        records: Records<O, B>,
    ) -> Self {
        Self {
            optim,
            grad_clipping,
            tracer: None,
            gradients: GradientPolicy::default(),
            reduction: None,
            groups: Vec::new(),
            learning_rates: None,
            records: Arc::new(Mutex::new(records)),
            completion: Arc::default(),
        }
    }

    /// This stepper with other states.
    pub(crate) fn with_records(self, records: Records<O, B>) -> Self {
        Self {
            records: Arc::new(Mutex::new(records)),
            completion: Arc::default(),
            ..self
        }
    }

    /// The current states.
    pub(crate) fn records(&self) -> Records<O, B> {
        self.lock().clone()
    }

    /// The current states, completed if that was asked for.
    pub(super) fn complete_records(&self) -> Result<Records<O, B>, ReductionError> {
        let mut records = self.records();
        if let Some(complete) = self.take_completion() {
            complete(&mut records)?;
        }
        Ok(records)
    }

    pub(super) fn set_completion(&self, completion: Completion<O, B>) {
        *lock(&self.completion) = Some(completion);
    }

    pub(super) fn take_completion(&self) -> Option<Completion<O, B>> {
        lock(&self.completion).take()
    }

    /// A stepper with states of its own.
    pub(crate) fn fork(&self) -> Self {
        let tracer = self.tracer.as_ref();
        Self {
            tracer: tracer.and_then(|tracer| Tracer::new(tracer.policy())),
            gradients: self.gradients.fork(),
            ..self.clone().with_records(self.records())
        }
    }

    /// Drops the states of parameters that other replicas step.
    pub(super) fn drop_foreign_states(&self) {
        if let Some(reduction) = &self.reduction {
            self.lock().retain(|param, _| reduction.is_owner(*param));
        }
    }

    /// Adds the states of parameters that have none here.
    pub(super) fn add_states(&self, states: Records<O, B>) {
        let mut records = self.lock();
        for (param, state) in states {
            records.entry(param).or_insert(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Records<O, B>> {
        lock(&self.records)
    }

    /// The first setting that changes steps and has no place in an optimizer of Burn.
    pub(super) fn not_burns(&self) -> Option<&'static str> {
        let gradients = &self.gradients;
        let has = [
            (!self.groups.is_empty(), "groups"),
            (self.learning_rates.is_some(), "rates by group"),
            (gradients.clipping.is_some(), "clipping by these norms"),
            (gradients.scaler.is_some(), "loss scaler"),
            (self.reduction.is_some(), "reduction over replicas"),
            (
                gradients.stops_at_non_finite,
                "stop at gradients that are no numbers",
            ),
        ];
        has.iter().find(|(has, _)| *has).map(|(_, what)| *what)
    }

    /// Settings of a group; `None` is the rest.
    pub(crate) fn settings(&self, group: Option<usize>) -> StepSettings<'_, O> {
        let rest = StepSettings {
            optim: &self.optim,
            grad_clipping: self.grad_clipping.as_ref(),
            clips_by_norm: true,
        };
        match group {
            Some(group) => self.groups[group].1.settings(rest),
            None => rest,
        }
    }

    /// Steps one parameter, as Burn's `OptimizerAdaptor` does, but for clipping in half precision.
    pub(crate) fn step<const D: usize>(
        &self,
        settings: StepSettings<'_, O>,
        lr: LearningRate,
        param: ParamId,
        tensor: Tensor<B::InnerBackend, D>,
        grad: Tensor<B::InnerBackend, D>,
    ) -> Tensor<B::InnerBackend, D> {
        let device = grad.device();
        let grad = match settings.grad_clipping {
            // In 32 bits and rounded once, as in Burn 0.22: in f16 the square of 300 is infinite, and
            // nothing would move.
            Some(clipping) => {
                let dtype = grad.dtype();
                clipping.clip_gradient(widened(grad)).cast(dtype)
            }
            None => grad,
        };
        let state = self
            .lock()
            .remove(&param)
            .map(|record: AdaptorRecord<O, B>| O::to_device(record.into_state::<D>(), &device));
        let (tensor, state) = settings.optim.step(lr, tensor, grad, state);
        if let Some(state) = state {
            self.lock().insert(param, AdaptorRecord::from_state(state));
        }
        tensor
    }
}

/// Wraps a primitive in Burn's tensor. `burn-gradient-release-optim` has the same line: the two crates share no
/// crate that knows Burn.
pub(super) fn from_float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

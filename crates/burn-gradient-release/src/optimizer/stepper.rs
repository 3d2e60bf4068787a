//! The step of a single parameter, which is Burn's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

use crate::{recompute::trace::Tracer, slot::Release};

/// Burn's record of an optimizer, `HashMap<ParamId, AdaptorRecord<O, B>>`: the state of each
/// parameter that was ever stepped. It is the same for every module.
pub(crate) type Records<O, B> =
    <OptimizerAdaptor<O, AnyModule<B>, B> as Optimizer<AnyModule<B>, B>>::Record;

type AnyModule<B> = Param<Tensor<B, 1>>;

/// A [`SimpleOptimizer`] with gradient clipping and the states of its parameters.
///
/// Clones share the states: the steps inside backward and the optimizer write to the same ones.
pub(crate) struct Stepper<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
{
    pub(crate) optim: O,
    pub(crate) grad_clipping: Option<GradientClipping>,
    /// Which cuts the forward passes of the parameters into slices.
    pub(crate) tracer: Option<Arc<Tracer>>,
    records: Arc<Mutex<Records<O, B>>>,
}

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
            records: Arc::new(Mutex::new(records)),
        }
    }

    /// The same, with other states.
    pub(crate) fn with_records(self, records: Records<O, B>) -> Self {
        Self {
            records: Arc::new(Mutex::new(records)),
            ..self
        }
    }

    /// The states as they are now.
    pub(crate) fn records(&self) -> Records<O, B> {
        self.lock().clone()
    }

    /// A stepper with states of its own.
    pub(crate) fn fork(&self) -> Self {
        let tracer = self.tracer.as_ref();
        Self {
            tracer: tracer.and_then(|tracer| Tracer::new(tracer.policy())),
            ..self.clone().with_records(self.records())
        }
    }

    fn lock(&self) -> MutexGuard<'_, Records<O, B>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps one parameter: what Burn's `OptimizerAdaptor` does with it.
    pub(crate) fn step<const D: usize>(
        &self,
        lr: LearningRate,
        param: ParamId,
        tensor: Tensor<B::InnerBackend, D>,
        grad: Tensor<B::InnerBackend, D>,
    ) -> Tensor<B::InnerBackend, D> {
        let device = grad.device();
        let tensor = if tensor.device() == device {
            tensor
        } else {
            tensor.to_device(&device)
        };
        let grad = match &self.grad_clipping {
            Some(clipping) => clipping.clip_gradient(grad),
            None => grad,
        };
        let state = self
            .lock()
            .remove(&param)
            .map(|record: AdaptorRecord<O, B>| O::to_device(record.into_state::<D>(), &device));
        let (tensor, state) = self.optim.step(lr, tensor, grad, state);
        if let Some(state) = state {
            self.lock().insert(param, AdaptorRecord::from_state(state));
        }
        tensor
    }

    /// The same as a function of primitives, for the tape.
    pub(crate) fn release<const D: usize>(
        &self,
        lr: LearningRate,
        param: ParamId,
    ) -> Release<B::InnerBackend> {
        let stepper = self.clone();
        Box::new(move |weight, grad| {
            let weight = stepper.step::<D>(lr, param, from_float(weight), from_float(grad));
            weight.into_primitive().tensor()
        })
    }
}

pub(super) fn from_float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

impl<O, B> Clone for Stepper<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: AutodiffBackend,
{
    fn clone(&self) -> Self {
        Self {
            optim: self.optim.clone(),
            grad_clipping: self.grad_clipping.clone(),
            tracer: self.tracer.clone(),
            records: self.records.clone(),
        }
    }
}

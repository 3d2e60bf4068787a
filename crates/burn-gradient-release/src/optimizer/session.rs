//! What was armed together, from arming to the end of the step or of the micro-batch.

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::{AutodiffModule, ModuleMapper, Param, ParamId},
    optim::GradientsParams,
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use crate::{
    ReleaseBackend,
    slot::{Progress, Slot},
    tensor::ReleaseTensor,
};

/// At which depth of the tape each parameter should be tapped, learnt from the previous backward.
pub(super) type DepthHints = HashMap<ParamId, usize>;

/// The armed parameters.
pub(super) struct Session<B: Backend> {
    pub(super) slots: HashMap<ParamId, Arc<Slot<B>>>,
    pub(super) progress: Arc<Progress>,
    /// Gradients of earlier micro-batches for parameters that have no slot.
    pub(super) held: GradientsParams,
}

impl<B: Backend> Session<B> {
    pub(super) fn acted(&self) -> usize {
        self.progress.acted()
    }

    pub(super) fn armed(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.progress.is_interrupted()
    }

    /// Takes the slot of a parameter, noting where its tap should have been.
    pub(super) fn remove(
        &mut self,
        param: ParamId,
        hints: &mut DepthHints,
    ) -> Option<Arc<Slot<B>>> {
        let slot = self.slots.remove(&param)?;
        if let Some(depth) = slot.next_depth() {
            hints.insert(param, depth);
        }
        Some(slot)
    }
}

/// What is held and what is new, in the order in which Burn's accumulator adds.
pub(super) fn sum<B: Backend, const D: usize>(
    held: Option<Tensor<B, D>>,
    grad: Option<Tensor<B, D>>,
) -> Option<Tensor<B, D>> {
    match (held, grad) {
        (Some(held), Some(grad)) => Some(held.add(grad)),
        (held, grad) => held.or(grad),
    }
}

/// Parameters whose session is gone are ordinary leaves again, for whichever optimizer is next.
impl<B: Backend> Drop for Session<B> {
    fn drop(&mut self) {
        self.slots.values().for_each(|slot| slot.disarm());
    }
}

/// Turns the parameters of a model whose session was cancelled into ordinary leaves.
pub(super) fn disarm<B: ReleaseBackend, M: AutodiffModule<B>>(model: M) -> M {
    struct Disarm;

    impl<B: ReleaseBackend> ModuleMapper<B> for Disarm {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            Param::from_mapped_value(id, disarmed(tensor), mapper)
        }
    }

    model.map(&mut Disarm)
}

/// The leaf behind a snapshot; everything else as it is.
pub(super) fn disarmed<B: ReleaseBackend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => {
            let tensor = B::into_release(tensor);
            wrap(match tensor.snapshot() {
                Some(snapshot) => ReleaseTensor::plain(snapshot.into_leaf()),
                None => tensor,
            })
        }
        quantized => Tensor::from_primitive(quantized),
    }
}

pub(super) fn float<B: ReleaseBackend, const D: usize>(
    tensor: Tensor<B, D>,
) -> Option<ReleaseTensor<B::InnerBackend>> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => Some(B::into_release(tensor)),
        TensorPrimitive::QFloat(_) => None,
    }
}

pub(super) fn wrap<B: ReleaseBackend, const D: usize>(
    tensor: ReleaseTensor<B::InnerBackend>,
) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::from_release(tensor)))
}

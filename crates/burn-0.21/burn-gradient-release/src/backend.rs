//! The decorator.

use std::marker::PhantomData;

#[cfg(feature = "distributed")]
use burn::tensor::backend::distributed::{DistributedParamId, DistributedParams};
use burn::tensor::{
    DType, TensorData,
    backend::{AutodiffBackend, Backend, BackendTypes, DTypeUsageSet, ExecutionError},
    ops::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy, grads::Gradients};

use crate::{
    backward,
    tensor::{ReleaseTensor, Repr},
    util::inner::AutodiffInner,
};

/// Enables gradient release on an autodiff backend.
///
/// A backend decorator like [`Autodiff`], put around it: `GradientRelease<Autodiff<Flex>>`. While
/// no optimizer is [armed](crate::ReleaseOptimizer::arm) it does what `Autodiff` does and returns
/// the same gradients. Inside the backward pass of an armed model, each parameter is stepped the
/// moment its gradient is complete, and the gradient is freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct GradientRelease<A> {
    _autodiff: PhantomData<A>,
}

/// A backend whose parameters can be armed: every `GradientRelease<Autodiff<B, C>>`.
///
/// Sealed: it has the types that [`ReleaseOptimizer`](crate::ReleaseOptimizer) needs from the
/// decorator.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a backend whose gradients can be released",
    label = "expected `GradientRelease<Autodiff<B>>`",
    note = "gradient release decorates an autodiff backend: `GradientRelease<Autodiff<Flex>>`, not `GradientRelease<Flex>` or `Autodiff<Flex>`"
)]
pub trait ReleaseBackend: AutodiffBackend<InnerBackend: AutodiffInner> + sealed::Sealed {
    /// Converts the primitive to the decorator's own type.
    #[doc(hidden)]
    fn into_release(tensor: FloatTensor<Self>) -> ReleaseTensor<Self::InnerBackend>;

    /// Converts the decorator's own type to the primitive.
    #[doc(hidden)]
    fn from_release(tensor: ReleaseTensor<Self::InnerBackend>) -> FloatTensor<Self>;
}

mod sealed {
    pub trait Sealed {}
}

impl<B: AutodiffInner, C: CheckpointStrategy> sealed::Sealed for GradientRelease<Autodiff<B, C>> {}

impl<B: AutodiffInner, C: CheckpointStrategy> ReleaseBackend for GradientRelease<Autodiff<B, C>> {
    fn into_release(tensor: ReleaseTensor<B>) -> ReleaseTensor<B> {
        tensor
    }

    fn from_release(tensor: ReleaseTensor<B>) -> ReleaseTensor<B> {
        tensor
    }
}

impl<B: Backend, C: CheckpointStrategy> BackendTypes for GradientRelease<Autodiff<B, C>> {
    type Device = B::Device;

    type FloatTensorPrimitive = ReleaseTensor<B>;
    type FloatElem = B::FloatElem;

    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;

    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;

    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> Backend for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::backend_methods!(Autodiff<B, C>);

    fn name(device: &Self::Device) -> String {
        format!("gradient-release<{}>", Autodiff::<B, C>::name(device))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: AutodiffInner, C: CheckpointStrategy> AutodiffBackend for GradientRelease<Autodiff<B, C>> {
    type InnerBackend = B;
    type Gradients = Gradients;

    fn backward(tensor: FloatTensor<Self>) -> Gradients {
        backward::backward::<B, C>(tensor)
    }

    fn grad(tensor: &FloatTensor<Self>, grads: &Gradients) -> Option<FloatTensor<B>> {
        match &tensor.0 {
            Repr::Plain(tensor, _) => Autodiff::<B, C>::grad(tensor, grads),
            Repr::Live(_) | Repr::Snapshot(_) => {
                Autodiff::<B, C>::grad(&tensor.snapshot()?.leaf, grads)
            }
            // Burn keeps gradients of leaves only.
            Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    fn grad_remove(tensor: &FloatTensor<Self>, grads: &mut Gradients) -> Option<FloatTensor<B>> {
        match &tensor.0 {
            Repr::Plain(tensor, _) => Autodiff::<B, C>::grad_remove(tensor, grads),
            Repr::Live(_) | Repr::Snapshot(_) => {
                let snapshot = tensor.snapshot()?;
                if let Some(owner) = snapshot.site.consumers.owner() {
                    owner.ask(grads);
                }
                Autodiff::<B, C>::grad_remove(&snapshot.leaf, grads)
            }
            Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    fn grad_replace(tensor: &FloatTensor<Self>, grads: &mut Gradients, grad: FloatTensor<B>) {
        Autodiff::<B, C>::grad_replace(&tensor.clone().into_autodiff(), grads, grad)
    }

    fn inner(tensor: FloatTensor<Self>) -> FloatTensor<B> {
        tensor.into_value()
    }

    fn from_inner(tensor: FloatTensor<B>) -> FloatTensor<Self> {
        ReleaseTensor::plain(Autodiff::<B, C>::from_inner(tensor))
    }

    fn int_inner(tensor: IntTensor<Self>) -> IntTensor<B> {
        tensor
    }

    fn bool_inner(tensor: BoolTensor<Self>) -> BoolTensor<B> {
        tensor
    }

    fn q_inner(tensor: QuantizedTensor<Self>) -> QuantizedTensor<B> {
        tensor
    }

    fn int_from_inner(tensor: IntTensor<B>) -> IntTensor<Self> {
        tensor
    }

    fn bool_from_inner(tensor: BoolTensor<B>) -> BoolTensor<Self> {
        tensor
    }

    fn q_from_inner(tensor: QuantizedTensor<B>) -> QuantizedTensor<Self> {
        tensor
    }

    /// # Panics
    ///
    /// If the tensor is armed, or depends on armed parameters: Burn would wait for a gradient that
    /// is gone.
    #[cfg(feature = "distributed")]
    fn set_distributed_params(
        tensor: FloatTensor<Self>,
        param_id: DistributedParamId,
    ) -> FloatTensor<Self> {
        let leaf = tensor.into_free_leaf().unwrap_or_else(|| {
            panic!(
                "gradient release: only a parameter that is not armed can be marked as distributed; \
                 finish its step or `disarm` the model first, or leave the mark off and give the \
                 optimizer a reduction (`with_reduction`)"
            )
        });
        ReleaseTensor::plain(Autodiff::<B, C>::set_distributed_params(leaf, param_id))
    }

    #[cfg(feature = "distributed")]
    fn distributed_params(tensor: &FloatTensor<Self>) -> Option<DistributedParams> {
        match &tensor.0 {
            Repr::Plain(tensor, _) => Autodiff::<B, C>::distributed_params(tensor),
            // Parameters without a mark were armed, and results computed from them have none.
            Repr::Live(_) | Repr::Snapshot(_) | Repr::Derived(_) | Repr::Replayable(_) => None,
        }
    }

    #[cfg(feature = "distributed")]
    fn is_distributed(tensor: &FloatTensor<Self>) -> bool {
        Self::distributed_params(tensor).is_some()
    }
}

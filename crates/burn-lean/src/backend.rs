//! The backends below autodiff, as far as Burn's `Dispatch` knows them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{
    Autodiff, Backend, BackendTensor, BackendTypes, DispatchAutodiffContext, DispatchTensor,
    DispatchTensorKind,
};

use crate::lock::lock;

/// A tensor of `Autodiff<B>`: Burn does not export its own name for it.
pub(crate) type Tracked<B> = <Autodiff<B> as BackendTypes>::FloatTensorPrimitive;

/// A float tensor of `B`.
pub(crate) type Primitive<B> = <B as BackendTypes>::FloatTensorPrimitive;

/// Takes what is registered as the gradient of a node, which must be something.
pub(crate) type TakeSum<B> = Box<dyn FnMut(NodeId, &mut Gradients) -> Primitive<B> + Send>;

/// Nodes without gradients, by order.
pub(crate) struct Rungs<B: Inner> {
    /// Each with the pass that has used it last.
    pub(crate) nodes: BTreeMap<usize, (Tracked<B>, usize)>,
    /// The pass in which those were dropped that no pass uses any more.
    pub(crate) swept: usize,
}

/// A backend of `Dispatch` that gradient release knows.
pub(crate) trait Inner: Backend {
    /// The tensor, if it is this backend's.
    fn unwrap(kind: DispatchTensorKind) -> Option<BackendTensor<Self>>;
    /// The tensor as one of `Dispatch`.
    fn wrap(tensor: BackendTensor<Self>) -> DispatchTensorKind;

    /// See [`rung`](crate::tape::rung).
    fn rungs() -> MutexGuard<'static, Rungs<Self>>;

    /// What [`take_sum`](crate::tape::take_sum) takes with, once it was used.
    fn take_sum() -> MutexGuard<'static, Option<TakeSum<Self>>>;

    /// A tensor without autodiff.
    fn tensor<const D: usize>(primitive: Primitive<Self>) -> Tensor<D> {
        Tensor::from_dispatch(DispatchTensor {
            kind: Self::wrap(BackendTensor::Float(primitive)),
            autodiff: DispatchAutodiffContext::Disabled,
        })
    }

    /// A tensor with autodiff.
    fn tracked<const D: usize>(
        tensor: Tracked<Self>,
        autodiff: DispatchAutodiffContext,
    ) -> Tensor<D> {
        Tensor::from_dispatch(DispatchTensor {
            kind: Self::wrap(BackendTensor::Autodiff(tensor)),
            autodiff,
        })
    }

    /// The primitive of a tensor without autodiff.
    fn of<const D: usize>(tensor: Tensor<D>) -> Primitive<Self> {
        match Self::unwrap(tensor.into_dispatch().kind) {
            Some(BackendTensor::Float(primitive)) => primitive,
            _ => panic!("a tensor of another backend, or another kind"),
        }
    }
}

/// A value of one type for each backend that is compiled in, and what goes with it.
macro_rules! backends {
    ($($(#[$cfg:meta])* $name:ident),+ $(,)?) => {
        $(
            $(#[$cfg])*
            #[allow(deprecated)] // Burn 0.22 deprecates NdArray.
            impl Inner for burn::backend::$name {
                fn unwrap(kind: DispatchTensorKind) -> Option<BackendTensor<Self>> {
                    #[allow(unreachable_patterns)] // With one backend there is no other.
                    match kind_of_backend(kind) {
                        DispatchTensorKind::$name(tensor) => Some(tensor),
                        _ => None,
                    }
                }
                fn wrap(tensor: BackendTensor<Self>) -> DispatchTensorKind {
                    let is_autodiff = matches!(tensor, BackendTensor::Autodiff(_));
                    let kind = DispatchTensorKind::$name(tensor);
                    match is_autodiff {
                        true => DispatchTensorKind::Autodiff(Box::new(kind)),
                        false => kind,
                    }
                }
                fn rungs() -> MutexGuard<'static, Rungs<Self>> {
                    static RUNGS: Mutex<Rungs<burn::backend::$name>> = Mutex::new(Rungs {
                        nodes: BTreeMap::new(),
                        swept: 0,
                    });
                    // Whatever panicked, each rung that is there is whole.
                    lock(&RUNGS)
                }
                fn take_sum() -> MutexGuard<'static, Option<TakeSum<Self>>> {
                    static TAKE_SUM: Mutex<Option<TakeSum<burn::backend::$name>>> = Mutex::new(None);
                    lock(&TAKE_SUM)
                }
            }
        )+

        /// Runs generic code on a tensor with its backend; `None` if it is none of those.
        pub(crate) fn with_backend<R>(
            kind: DispatchTensorKind,
            run: impl WithBackend<Output = R>,
        ) -> Option<R> {
            #[allow(unreachable_patterns, deprecated)]
            match kind_of_backend(kind) {
                $(
                    $(#[$cfg])*
                    DispatchTensorKind::$name(tensor) => {
                        Some(run.run::<burn::backend::$name>(tensor))
                    }
                )+
                _ => None,
            }
        }
    };
}

/// The kind of the backend: tensors with autodiff have it in a box.
fn kind_of_backend(kind: DispatchTensorKind) -> DispatchTensorKind {
    match kind {
        DispatchTensorKind::Autodiff(kind) => *kind,
        kind => kind,
    }
}

/// Whether the device of a tensor computes while the program goes on, so that reading waits for it.
pub(crate) fn reading_waits(kind: &DispatchTensorKind) -> bool {
    #[allow(unreachable_patterns)] // Not every backend is compiled in.
    match kind {
        DispatchTensorKind::Autodiff(kind) => reading_waits(kind),
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => true,
        _ => false,
    }
}

/// Whether a tensor is on Flex.
#[cfg(feature = "operations")]
pub(crate) fn is_on_flex<const D: usize>(tensor: &Tensor<D>) -> bool {
    #[allow(unreachable_patterns)] // With one backend there is no other.
    match kind_of_backend(tensor.clone().into_dispatch().kind) {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        _ => false,
    }
}

/// Code that is generic over the backend.
pub(crate) trait WithBackend {
    /// Its result.
    type Output;
    /// Runs it on a tensor.
    fn run<B: Inner>(self, tensor: BackendTensor<B>) -> Self::Output;
}

backends! {
    #[cfg(feature = "flex")]
    Flex,
    #[cfg(feature = "ndarray")]
    NdArray,
    #[cfg(feature = "cube")]
    Cube,
}

//! The backend decorator, which passes each operation through the recorder.

#[cfg(feature = "lean-optim")]
mod lean_optim;
mod ops;
mod recordable;

use std::marker::PhantomData;

use burn::tensor::{
    DType, TensorData,
    backend::{Backend, BackendTypes, DTypeUsageSet, ExecutionError},
};

pub use recordable::RecordableBackend;

use crate::recorder::RecordedTensor;

/// A backend whose memory can be recorded.
///
/// A backend decorator around the innermost backend: `Autodiff<Recorded<Flex>>`. Below `Autodiff`
/// it sees the operations of the forward pass, of the backward pass and of the optimizer. It
/// computes nothing itself.
///
/// While nothing is recorded, a tensor costs one small allocation more. During a recording, each
/// operation takes a lock and reads the storage of its outputs.
///
/// Quantized tensors are not recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded<B> {
    _below: PhantomData<B>,
}

impl<B: RecordableBackend> BackendTypes for Recorded<B> {
    type Device = B::Device;

    type FloatTensorPrimitive = RecordedTensor<B::FloatTensorPrimitive>;
    type FloatElem = B::FloatElem;

    type IntTensorPrimitive = RecordedTensor<B::IntTensorPrimitive>;
    type IntElem = B::IntElem;

    type BoolTensorPrimitive = RecordedTensor<B::BoolTensorPrimitive>;
    type BoolElem = B::BoolElem;

    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

#[deny(clippy::missing_trait_methods)]
impl<B: RecordableBackend> Backend for Recorded<B> {
    burn_gradient_release_decorator::backend_methods!(B);

    fn name(device: &Self::Device) -> String {
        format!("recorded<{}>", B::name(device))
    }
}

//! The tensor of the recorded backend.

use std::sync::Arc;

use burn::tensor::{DType, Shape, TensorMetadata};

use super::{handle::TensorHandle, state};
use crate::storage::HasStorage;

/// Tensor primitive of [`Recorded`](crate::Recorded): the tensor of the backend below, and the
/// recorder's handle of it.
#[derive(Clone, Debug)]
pub struct RecordedTensor<P> {
    // Dropped before `handle`: when the recorder releases the tensor, its memory is free.
    pub(crate) below: P,
    pub(super) handle: Arc<TensorHandle>,
}

impl<P: HasStorage> RecordedTensor<P> {
    /// Registers a tensor that may exist since before the recording.
    pub(super) fn register(&self) {
        state::register_existing(self.handle.entry(), || self.below.storage());
    }
}

impl<P: TensorMetadata> TensorMetadata for RecordedTensor<P> {
    fn dtype(&self) -> DType {
        self.below.dtype()
    }

    fn shape(&self) -> Shape {
        self.below.shape()
    }

    fn rank(&self) -> usize {
        self.below.rank()
    }
}

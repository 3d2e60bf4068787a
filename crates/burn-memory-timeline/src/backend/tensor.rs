//! The tensor of the decorated backend.

use std::sync::Arc;

use burn::tensor::{DType, Shape, TensorMetadata};

use crate::recorder::Held;

/// Tensor primitive of [`Recorded`](crate::Recorded): the tensor of the backend below, and who
/// tells the recorder when the last of its copies is gone.
#[derive(Clone, Debug)]
pub struct RecordedTensor<P> {
    // Dropped before `held`: when the recorder hears of it, the memory is free.
    pub(crate) below: P,
    pub(crate) held: Arc<Held>,
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

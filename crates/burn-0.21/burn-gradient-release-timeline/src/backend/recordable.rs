//! The backends that can be recorded.

use burn::tensor::backend::Backend;

use crate::storage::HasStorage;

/// A backend that can be [`Recorded`](crate::Recorded): its tensors [have a storage](HasStorage).
///
/// Flex with the feature `flex`; wgpu and CUDA, without fusion, with the feature `cubecl`. A fused
/// operation has no memory until its block runs, so that there is nothing to record: record the
/// unfused backend.
pub trait RecordableBackend:
    Backend<
        FloatTensorPrimitive: HasStorage,
        IntTensorPrimitive: HasStorage,
        BoolTensorPrimitive: HasStorage,
    >
{
}

impl<B> RecordableBackend for B where
    B: Backend<
            FloatTensorPrimitive: HasStorage,
            IntTensorPrimitive: HasStorage,
            BoolTensorPrimitive: HasStorage,
        >
{
}

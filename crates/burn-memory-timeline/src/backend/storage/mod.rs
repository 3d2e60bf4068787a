//! Where the bytes of a tensor lie.

#[cfg(feature = "cubecl")]
mod cubecl;
#[cfg(feature = "flex")]
mod flex;

use burn::tensor::backend::Backend;

/// The memory behind a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its identity: the same for tensors that share it, and another for each that lives beside it.
    pub id: usize,
    /// Its size, of which the tensor may see a part only.
    pub bytes: u64,
}

/// A tensor whose memory can be told from that of others.
///
/// Views share the memory of what they show, and an operation in place leaves its result where its
/// operand was. Nobody but the tensor knows, and without it the bytes would not add up.
#[diagnostic::on_unimplemented(
    message = "the memory of `{Self}` cannot be recorded",
    note = "recorded are Flex (feature `flex`), and wgpu and CUDA without fusion (feature `cubecl`), as \
            `burn_device_memory::MeteredWgpuUnfused`"
)]
pub trait HasStorage {
    /// The memory behind this tensor.
    fn storage(&self) -> Storage;
}

/// A backend that can be [`Recorded`](crate::Recorded): each of its tensors
/// [has a storage](HasStorage).
///
/// Flex with the feature `flex`; wgpu and CUDA, without fusion, with the feature `cubecl`. Fused
/// operations have no memory of their own until their block is run, so that there is nothing to record:
/// record the unfused backend.
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

//! The memory that a tensor occupies.

#[cfg(feature = "cubecl")]
mod cubecl;
#[cfg(feature = "flex")]
mod flex;

pub use lean_timeline::ledger::Storage;

/// A tensor whose memory has an identity.
///
/// A view shares the memory of its operand, and an operation in place leaves its result in the
/// memory of its operand. Without the identity the recorder would count both twice.
#[diagnostic::on_unimplemented(
    message = "the memory of `{Self}` cannot be recorded",
    note = "recorded are Flex (feature `flex`), and wgpu and CUDA without fusion (feature `cubecl`), as \
            `burn_gradient_release_device_memory::MeteredWgpuUnfused`"
)]
pub trait HasStorage {
    /// The memory that this tensor occupies.
    fn storage(&self) -> Storage;
}

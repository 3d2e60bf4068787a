//! The memory that CubeCL reserves from a GPU.

use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// CubeCL has read its settings: [`reuse_device_memory`] has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a GPU was used before, and CubeCL reads its settings once: call `reuse_device_memory` before the \
     first device, or write `persistent_memory = \"size-match\"` below `[memory]` into a `cubecl.toml` in \
     the folder in which the program starts"
)]
pub struct DeviceMemoryInUse;

/// Lets all tensors of a weight's size share the buffers of that size, on a GPU.
///
/// By default, CubeCL reserves a buffer of its own for each weight, and reuses it for nothing else.
/// Burn's AdamW writes new weights elsewhere: after its first step, as many bytes as all weights
/// are reserved for nothing. Gradients and moments are in pages that are a mebibyte larger than the
/// largest tensor. With this setting, gradients, moments and weights take turns in buffers of their
/// size, without a gap. Activations then share no pages with them. So more may be reserved without
/// scopes, without fusion and with an optimizer that steps in place. Compare `bytes_reserved` of
/// `device.memory_pool_usage()`.
///
/// The setting is for all GPUs of the process. It keeps the other settings of a `cubecl.toml`. Call
/// it before the first use of a device.
///
/// # Errors
///
/// A GPU was used before, with other settings.
///
/// # Example
///
/// ```no_run
/// use burn::tensor::Device;
///
/// burn_lean::reuse_device_memory()?;
/// # #[cfg(feature = "wgpu")]
/// let device = Device::wgpu(Default::default()).autodiff();
/// # Ok::<(), burn_lean::DeviceMemoryInUse>(())
/// ```
pub fn reuse_device_memory() -> Result<(), DeviceMemoryInUse> {
    // Where there are no files and no environment, there is nothing to keep.
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    #[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "windows")))]
    let mut config = CubeClRuntimeConfig::default();
    config.memory.persistent_memory = PersistentMemory::SizeMatch;
    if CubeClRuntimeConfig::try_set(config) {
        return Ok(());
    }
    match CubeClRuntimeConfig::get().memory.persistent_memory {
        PersistentMemory::SizeMatch => Ok(()),
        _ => Err(DeviceMemoryInUse),
    }
}

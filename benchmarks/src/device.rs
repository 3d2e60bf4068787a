//! Checks that this machine has the device of a backend, and sets it up.
//!
//! Without its device, a GPU backend of Burn panics at its first use.

use anyhow::Result;
#[cfg(feature = "cube")]
use anyhow::bail;
#[cfg(feature = "cube")]
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use vit_inputs::BackendKind;

/// Finds whether a backend of this build can be used.
///
/// # Errors
///
/// Its device is missing.
pub fn require(backend: BackendKind) -> Result<()> {
    match backend {
        BackendKind::Flex => Ok(()),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => adapter::require(),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => cuda::require(),
        #[allow(unreachable_patterns)] // With every feature on, no backend remains.
        _ => Ok(()),
    }
}

/// Changes the settings that CubeCL has for Burn 0.22, beside those of a `cubecl.toml`.
///
/// # Errors
///
/// A GPU was used before: they are read once.
#[cfg(feature = "cube")]
pub fn configure(change: impl FnOnce(&mut CubeClRuntimeConfig)) -> Result<()> {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    change(&mut config);
    if !CubeClRuntimeConfig::try_set(config) {
        bail!("a GPU was used before");
    }
    Ok(())
}

/// An adapter of wgpu.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Name of the adapter.
    pub name: String,
    /// Whether it computes on the CPU.
    pub is_software: bool,
}

/// The adapters that wgpu finds, in a build that has it.
#[cfg(feature = "wgpu")]
pub fn adapters() -> Vec<Adapter> {
    let adapters = adapter::all().into_iter();
    let adapters = adapters.map(|info| Adapter {
        is_software: info.device_type == wgpu::DeviceType::Cpu,
        name: info.name,
    });
    adapters.collect()
}

/// None: this build has no wgpu.
#[cfg(not(feature = "wgpu"))]
pub fn adapters() -> Vec<Adapter> {
    Vec::new()
}

#[cfg(feature = "wgpu")]
mod adapter {
    use super::*;
    use cubecl::future::block_on;
    use cubecl::wgpu::{AutoGraphicsApi, GraphicsApi};
    use wgpu::{AdapterInfo, Instance, InstanceDescriptor};

    pub(super) fn require() -> Result<()> {
        if all().is_empty() {
            let api = AutoGraphicsApi::backend();
            bail!(
                "no wgpu adapter: {api} finds no driver; install the one of the GPU, or one in \
                 software (Debian's mesa-vulkan-drivers)"
            );
        }
        Ok(())
    }

    /// The adapters of the graphics API that Burn uses.
    pub(super) fn all() -> Vec<AdapterInfo> {
        let api = AutoGraphicsApi::backend();
        let instance = Instance::new(InstanceDescriptor {
            backends: api.into(),
            ..InstanceDescriptor::new_without_display_handle()
        });
        let adapters = block_on(instance.enumerate_adapters(api.into()));
        adapters.iter().map(|adapter| adapter.get_info()).collect()
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use cubecl::cuda::install::cuda_path;
    use cudarc::driver::result as driver;
    use cudarc::nvrtc::compile_ptx;
    use std::panic::{self, UnwindSafe};

    pub(super) fn require() -> Result<()> {
        let missing: Vec<String> = [device(), compiler(), headers()]
            .into_iter()
            .flatten()
            .collect();
        if !missing.is_empty() {
            bail!("CUDA is not usable here: {}", missing.join("; "));
        }
        Ok(())
    }

    fn device() -> Option<String> {
        let Some(initialized) = loaded(driver::init) else {
            return Some("no libcuda (install NVIDIA's driver)".into());
        };
        match initialized.and_then(|()| driver::device::get_count()) {
            Ok(0) => Some("no NVIDIA GPU".into()),
            Ok(_) => None,
            Err(error) => Some(format!("no NVIDIA GPU that answers ({error})")),
        }
    }

    fn compiler() -> Option<String> {
        match loaded(|| compile_ptx("extern \"C\" __global__ void nothing() {}")) {
            None => Some("no libnvrtc (install the CUDA toolkit, or set LD_LIBRARY_PATH)".into()),
            Some(Err(error)) => Some(format!("NVRTC does not compile ({error})")),
            Some(Ok(_)) => None,
        }
    }

    fn headers() -> Option<String> {
        let header = "include/cuda_runtime.h";
        match cuda_path() {
            None => Some(format!(
                "no {header} (install the CUDA toolkit, or set CUDA_PATH)"
            )),
            Some(path) if path.join(header).is_file() => None,
            Some(path) => Some(format!("no {header} in {}, the CUDA_PATH", path.display())),
        }
    }

    /// The result of a call; `None` if the library that it needs cannot be loaded, as cudarc then
    /// panics.
    fn loaded<T>(call: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let called = panic::catch_unwind(call);
        panic::set_hook(hook);
        called.ok()
    }
}

//! The device of a run, and the bytes in use on it.

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use vit_common::config::BackendKind;
use vit_common::memory::{Heap, Peak};

/// The device, without autodiff.
///
/// # Errors
///
/// This build does not have it.
#[cfg_attr(
    not(any(feature = "flex", feature = "wgpu", feature = "cuda")),
    allow(unreachable_code, unused_variables) // The benchmarks use the model alone.
)]
pub fn open(backend: BackendKind) -> Result<Device> {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if !backend.is_on_heap() {
        burn_lean::reuse_device_memory()?;
    }
    let device = match backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => Device::flex(),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => of_this_process(
            burn::tensor::DeviceType::Wgpu,
            Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        ),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => of_this_process(
            burn::tensor::DeviceType::Cuda,
            Device::cuda(burn::tensor::DeviceIndex::Default),
        ),
        #[allow(unreachable_patterns)] // With every feature on, no backend remains.
        _ => return Err(backend.not_compiled_in()),
    };
    // Burn panics at the first use of a device without a driver: before anything is written.
    let _ = Tensor::<1>::zeros([1], &device).into_data();
    Ok(device)
}

/// Of several processes on a machine, each has the device with its number.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn of_this_process(kind: burn::tensor::DeviceType, first: Device) -> Device {
    let Some(rank) = vit_common::run::local_rank() else {
        return first;
    };
    let devices = Device::enumerate(kind).into_vec();
    match devices.len() {
        0 | 1 => first,
        count => devices[rank % count].clone(),
    }
}

/// Counts the memory that holds the tensors of a run: the heap, where that is on the CPU. A GPU is
/// asked at every [`look`](Self::look); its peak between two of them is not seen, but what it
/// reserved for that peak is.
#[derive(Clone, Debug)]
pub struct Memory {
    gpu: Option<Device>,
    heap: Heap,
    highest: Peak,
}

impl Memory {
    /// Starts counting: bytes that are in use on the heap now are left out.
    pub fn start(device: &Device) -> Self {
        Self {
            gpu: device.memory_pool_usage().map(|_| device.clone()),
            heap: Heap::start(),
            highest: Peak::default(),
        }
    }

    /// Looks at the memory; the peak so far.
    pub fn look(&mut self) -> Peak {
        match self.gpu.as_ref().and_then(Device::memory_pool_usage) {
            Some(now) => {
                let reserved = self.highest.reserved.unwrap_or_default();
                self.highest.in_use = self.highest.in_use.max(now.bytes_in_use);
                self.highest.reserved = Some(reserved.max(now.bytes_reserved));
            }
            None => self.highest.in_use = self.heap.peak(),
        }
        self.highest
    }
}

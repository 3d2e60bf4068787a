//! The device of a run, and the bytes in use on it.

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use peak_alloc::PeakAlloc;
use vit_inputs::{BackendKind, mib};

/// The device, without autodiff.
pub(crate) fn open(backend: BackendKind) -> Result<Device> {
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
    let Some(rank) = vit_inputs::local_rank() else {
        return first;
    };
    let devices = Device::enumerate(kind).into_vec();
    match devices.len() {
        0 | 1 => first,
        count => devices[rank % count].clone(),
    }
}

/// The memory that holds the tensors of a run: the heap, beyond what was in use at the start. A GPU is asked at every
/// [`look`](Self::look): its peak between two of them is not seen, but what it reserved for that peak is.
pub(crate) struct Memory {
    gpu: Option<Device>,
    at_start: usize,
    /// The peak of the bytes in use.
    pub(crate) peak: u64,
    /// That of the bytes reserved from a GPU.
    pub(crate) reserved: Option<u64>,
}

impl Memory {
    pub(crate) fn start(device: &Device) -> Self {
        PeakAlloc.reset_peak_usage();
        Self {
            gpu: device.memory_pool_usage().map(|_| device.clone()),
            at_start: PeakAlloc.current_usage(),
            peak: 0,
            reserved: None,
        }
    }

    /// Forgets the peak so far.
    pub(crate) fn reset(&mut self) {
        PeakAlloc.reset_peak_usage();
        (self.peak, self.reserved) = (0, None);
    }

    /// Looks at the memory; the peak so far, in MiB.
    pub(crate) fn look(&mut self) -> String {
        let heap = PeakAlloc.peak_usage().saturating_sub(self.at_start);
        self.peak = match self.gpu.as_ref().and_then(Device::memory_pool_usage) {
            None => heap as u64,
            Some(now) => {
                self.reserved = self.reserved.max(Some(now.bytes_reserved));
                self.peak.max(now.bytes_in_use)
            }
        };
        mib(self.peak)
    }
}

//! The highest number of bytes that a run had in use.

use burn::tensor::Device;
use vit_common::memory::{Heap, Peak};

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

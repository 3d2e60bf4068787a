//! The highest number of bytes that a run had in use.

use burn::tensor::Device;
use vit_common::memory::{Heap, Peak};

/// Counts the memory that holds the tensors of a run.
///
/// The allocator of the binary counts every byte of the CPU. A GPU is asked at every
/// [`look`](Self::look): its peak between two of them is not seen, but what it reserved for that
/// peak is.
#[derive(Clone, Debug)]
pub struct HighWater {
    place: Place,
    highest: Peak,
}

#[derive(Clone, Debug)]
enum Place {
    Heap(Heap),
    Device(Device),
}

impl HighWater {
    /// Starts counting: bytes that are in use on the heap now are left out.
    pub fn start(device: &Device) -> Self {
        let place = match device.memory_pool_usage() {
            Some(_) => Place::Device(device.clone()),
            None => Place::Heap(Heap::start()),
        };
        Self {
            place,
            highest: Peak::default(),
        }
    }

    /// Looks at the memory of a GPU.
    pub fn look(&mut self) {
        if let Place::Device(device) = &self.place
            && let Some(usage) = device.memory_pool_usage()
        {
            let reserved = self.highest.reserved.unwrap_or_default();
            self.highest = Peak {
                in_use: self.highest.in_use.max(usage.bytes_in_use),
                reserved: Some(reserved.max(usage.bytes_reserved)),
            };
        }
    }

    /// The peak so far.
    pub fn peak(&self) -> Peak {
        match &self.place {
            Place::Heap(heap) => Peak {
                in_use: heap.peak(),
                reserved: None,
            },
            Place::Device(_) => self.highest,
        }
    }
}

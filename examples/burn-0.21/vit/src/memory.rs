//! Bytes in use by a run, and their peak.
//!
//! The tensors of the CPU backends are on the heap, which the allocator of the binary counts; a GPU
//! backend counts its own allocations.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_device_memory::DeviceMemory;
use burn_gradient_release_timeline::MemoryCounter;
use burn_gradient_release_train::PeakMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use vit_common::memory::{Heap, Peak};

/// The memory that holds the tensors of a run. Its methods are for the thread that trains.
#[derive(Clone, Debug)]
pub enum Memory {
    /// On the heap.
    Heap(Heap),
    /// On a GPU.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    Device(DeviceMemory),
}

impl Memory {
    /// Bytes in use now.
    pub fn in_use(&self) -> u64 {
        match self {
            Self::Heap(heap) => heap.in_use(),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.usage().in_use,
        }
    }

    /// The peak since the start, or since the last reset.
    pub fn peak(&self) -> Peak {
        match self {
            Self::Heap(heap) => Peak {
                in_use: heap.peak(),
                reserved: None,
            },
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => {
                let peak = device.peak();
                Peak {
                    in_use: peak.in_use,
                    reserved: Some(peak.reserved),
                }
            }
        }
    }

    /// Resets the peak to the bytes in use now.
    pub fn reset_peak(&self) {
        match self {
            Self::Heap(heap) => heap.reset_peak(),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.reset_peak(),
        }
    }
}

/// The peak of each training step, for a metric, and the peak of the whole run. Also counts for a
/// memory recording.
///
/// Clones share their counts.
#[derive(Clone, Debug)]
pub struct HighWater {
    memory: Memory,
    /// The peak of the whole run.
    in_use: Arc<AtomicU64>,
    reserved: Arc<AtomicU64>,
    /// The peak of the training step.
    in_step: Arc<AtomicU64>,
}

impl HighWater {
    /// Starts counting, with a reset of the peak.
    pub fn start(memory: Memory) -> Self {
        memory.reset_peak();
        Self {
            memory,
            in_use: Arc::default(),
            reserved: Arc::default(),
            in_step: Arc::default(),
        }
    }

    /// The peak of the whole run, across resets.
    pub fn highest(&self) -> Peak {
        self.note(self.memory.peak())
    }

    fn note(&self, now: Peak) -> Peak {
        highest(&self.in_step, now.in_use);
        Peak {
            in_use: highest(&self.in_use, now.in_use),
            reserved: now.reserved.map(|now| highest(&self.reserved, now)),
        }
    }
}

fn highest(of: &AtomicU64, now: u64) -> u64 {
    of.fetch_max(now, Ordering::Relaxed).max(now)
}

impl PeakMemory for HighWater {
    fn reset_peak(&self) {
        self.highest();
        self.memory.reset_peak();
        self.in_step.store(0, Ordering::Relaxed);
    }

    fn peak_bytes(&self) -> u64 {
        highest(&self.in_step, self.memory.peak().in_use)
    }
}

impl MemoryCounter for HighWater {
    fn in_use(&mut self) -> u64 {
        self.memory.in_use()
    }

    fn take_peak(&mut self) -> u64 {
        let now = self.memory.peak();
        self.note(now);
        self.memory.reset_peak();
        now.in_use
    }

    fn counts_heap(&self) -> bool {
        matches!(self.memory, Memory::Heap(_))
    }
}

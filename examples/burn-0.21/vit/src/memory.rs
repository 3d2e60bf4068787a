//! Bytes in use by a run, and their peak.
//!
//! The tensors of the CPU backends are on the heap, which the allocator of the binary counts; a GPU
//! backend counts its own allocations.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_device_memory::DeviceMemory;
use burn_gradient_release_timeline::MemoryCounter;
use peak_alloc::PeakAlloc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes in use.
    pub in_use: u64,
    /// Bytes reserved from the device; not counted on the heap.
    pub reserved: Option<u64>,
}

/// The memory that holds the tensors of a run. Its methods are for the thread that trains.
#[derive(Clone, Debug)]
pub enum Memory {
    /// On the heap, beyond the bytes that were in use when the counting started.
    Heap(usize),
    /// On a GPU.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    Device(DeviceMemory),
}

impl Memory {
    /// Counts the heap from now on.
    pub fn heap() -> Self {
        PeakAlloc.reset_peak_usage();
        Self::Heap(PeakAlloc.current_usage())
    }

    /// Bytes in use now.
    pub fn in_use(&self) -> u64 {
        match self {
            Self::Heap(start) => PeakAlloc.current_usage().saturating_sub(*start) as u64,
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.usage().in_use,
        }
    }

    /// The peak since the start, or since the last reset.
    pub fn peak(&self) -> Peak {
        match self {
            Self::Heap(start) => Peak {
                in_use: PeakAlloc.peak_usage().saturating_sub(*start) as u64,
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
            Self::Heap(_) => PeakAlloc.reset_peak_usage(),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.reset_peak(),
        }
    }
}

/// The peak of a whole run, across the resets of a memory recording, for which it also counts.
///
/// Clones share their counts.
#[derive(Clone, Debug)]
pub struct HighWater {
    memory: Memory,
    in_use: Arc<AtomicU64>,
    reserved: Arc<AtomicU64>,
}

impl HighWater {
    /// Starts counting, with a reset of the peak.
    pub fn start(memory: Memory) -> Self {
        memory.reset_peak();
        Self {
            memory,
            in_use: Arc::default(),
            reserved: Arc::default(),
        }
    }

    /// The peak of the whole run, across resets.
    pub fn highest(&self) -> Peak {
        let now = self.memory.peak();
        let highest = |of: &AtomicU64, now| of.fetch_max(now, Ordering::Relaxed).max(now);
        Peak {
            in_use: highest(&self.in_use, now.in_use),
            reserved: now.reserved.map(|now| highest(&self.reserved, now)),
        }
    }
}

impl MemoryCounter for HighWater {
    fn in_use(&mut self) -> u64 {
        self.memory.in_use()
    }

    fn take_peak(&mut self) -> u64 {
        self.highest();
        let peak = self.memory.peak().in_use;
        self.memory.reset_peak();
        peak
    }

    fn counts_heap(&self) -> bool {
        matches!(self.memory, Memory::Heap(_))
    }
}

//! How many bytes a run has and had at most, wherever its tensors live.
//!
//! The CPU backends keep theirs on the heap, which the counting allocator of the binary sees; a GPU
//! has an accounting of its own.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_device_memory::DeviceMemory;
use burn_gradient_release_train::PeakMemory;
use burn_memory_timeline::MemoryCounter;
use peak_alloc::PeakAlloc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the tensors of a run are counted. Ask on the thread that trains.
#[derive(Clone, Debug)]
pub enum Memory {
    /// On the heap.
    Heap(Heap),
    /// On a GPU.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    Device(DeviceMemory),
}

/// The most bytes at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// What lived.
    pub in_use: u64,
    /// What was taken from the device; nobody counts that on the heap.
    pub reserved: Option<u64>,
}

impl Memory {
    /// Bytes that live now.
    pub fn in_use(&self) -> u64 {
        match self {
            Self::Heap(heap) => heap.in_use(),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.usage().in_use,
        }
    }

    /// The most since the start, or since the peak was last forgotten.
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

    /// Forgets the peak until now.
    pub fn reset_peak(&self) {
        match self {
            Self::Heap(_) => PeakAlloc.reset_peak_usage(),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            Self::Device(device) => device.reset_peak(),
        }
    }
}

/// Bytes on the heap, counted from the moment the counting was started.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    start: usize,
}

impl Heap {
    /// Leaves out what lives now and forgets the peak until now.
    pub fn start() -> Self {
        PeakAlloc.reset_peak_usage();
        Self {
            start: PeakAlloc.current_usage(),
        }
    }

    fn in_use(&self) -> u64 {
        PeakAlloc.current_usage().saturating_sub(self.start) as u64
    }

    fn peak(&self) -> u64 {
        PeakAlloc.peak_usage().saturating_sub(self.start) as u64
    }
}

/// The peak of each training step for a metric, the highest of a whole run, and what a recording
/// asks after every operation.
///
/// Clones share what they count.
#[derive(Clone, Debug)]
pub struct HighWater {
    memory: Memory,
    /// The most of the whole run.
    in_use: Arc<AtomicU64>,
    reserved: Arc<AtomicU64>,
    /// The most of the training step.
    in_step: Arc<AtomicU64>,
}

impl HighWater {
    /// Forgets the peak until now.
    pub fn start(memory: Memory) -> Self {
        memory.reset_peak();
        Self {
            memory,
            in_use: Arc::default(),
            reserved: Arc::default(),
            in_step: Arc::default(),
        }
    }

    /// The most bytes at once, resets or not.
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

/// `bytes` for people.
pub fn human(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1024.0 * 1024.0))
}

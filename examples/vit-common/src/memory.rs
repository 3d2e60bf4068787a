//! Bytes on the heap, which the allocator of a binary counts.

use peak_alloc::PeakAlloc;

/// The highest number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Bytes in use.
    pub in_use: u64,
    /// Bytes reserved from the device; not counted on the heap.
    pub reserved: Option<u64>,
}

/// Bytes on the heap, beyond those in use when the counting started.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    start: usize,
}

impl Heap {
    /// Starts counting: bytes in use now are left out.
    pub fn start() -> Self {
        PeakAlloc.reset_peak_usage();
        Self {
            start: PeakAlloc.current_usage(),
        }
    }

    /// Bytes in use now.
    pub fn in_use(&self) -> u64 {
        PeakAlloc.current_usage().saturating_sub(self.start) as u64
    }

    /// The peak since the start, or since the last reset.
    pub fn peak(&self) -> u64 {
        PeakAlloc.peak_usage().saturating_sub(self.start) as u64
    }

    /// Resets the peak to the bytes in use now.
    pub fn reset_peak(&self) {
        PeakAlloc.reset_peak_usage();
    }
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

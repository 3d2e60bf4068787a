//! What the heap holds, by the counting allocator of the binary.
//!
//! Only the CPU backends keep their tensors on the heap; for a device backend there is no number
//! here, and none is made up.

use burn_gradient_release_train::PeakMemory;
use peak_alloc::PeakAlloc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes on the heap, counted from the moment the meter was started.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    start: usize,
}

impl Meter {
    /// Leaves out what lives now and forgets the peak until now.
    pub fn start() -> Self {
        PeakAlloc.reset_peak_usage();
        Self {
            start: PeakAlloc.current_usage(),
        }
    }

    /// Bytes living now beyond those at the start.
    pub fn live(&self) -> u64 {
        PeakAlloc.current_usage().saturating_sub(self.start) as u64
    }

    /// The most bytes that lived at once, beyond those at the start.
    pub fn peak(&self) -> u64 {
        PeakAlloc.peak_usage().saturating_sub(self.start) as u64
    }

    /// Forgets the peak until now.
    pub fn reset_peak(&self) {
        PeakAlloc.reset_peak_usage();
    }
}

/// The peak of each training step for a metric, and the highest of a whole run.
///
/// Clones share what they count.
#[derive(Clone, Debug)]
pub struct HighWater {
    meter: Meter,
    highest: Arc<AtomicU64>,
}

impl HighWater {
    /// Leaves out what lives now and forgets the peak until now.
    pub fn start() -> Self {
        Self {
            meter: Meter::start(),
            highest: Arc::default(),
        }
    }

    /// The most bytes that lived at once, resets or not.
    pub fn highest(&self) -> u64 {
        let peak = self.meter.peak();
        self.highest.fetch_max(peak, Ordering::Relaxed).max(peak)
    }
}

impl PeakMemory for HighWater {
    fn reset_peak(&self) {
        self.highest();
        self.meter.reset_peak();
    }

    fn peak_bytes(&self) -> u64 {
        self.meter.peak()
    }
}

/// `bytes` for people.
pub fn human(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1024.0 * 1024.0))
}

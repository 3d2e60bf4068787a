//! Bytes of a GPU. Burn 0.22 tells those in use now, and counts no peak.

use benchmarks::measure::Counter;
use burn_0_22::tensor::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use vit_0_21::memory::Peak;

/// Asks the device without a pause, from a thread of its own: its queue of operations is not that of the
/// thread that trains, which stays as it is. The peak in use is the highest that was seen, at the
/// latest at the end of a stage. What is reserved falls only where it is given back, so that its
/// peak is exact.
pub(super) struct DeviceMemory {
    device: Device,
    seen: Arc<Seen>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    in_use: AtomicU64,
    reserved: AtomicU64,
    is_over: AtomicBool,
}

impl Seen {
    /// Notes what is in use now; the bytes.
    fn look(&self, device: &Device) -> u64 {
        let Some(usage) = device.memory_pool_usage() else {
            return 0;
        };
        self.in_use.fetch_max(usage.bytes_in_use, Ordering::Relaxed);
        self.reserved
            .fetch_max(usage.bytes_reserved, Ordering::Relaxed);
        usage.bytes_in_use
    }
}

impl DeviceMemory {
    /// Starts to watch a device.
    pub(super) fn start(device: &Device) -> Self {
        let seen = Arc::<Seen>::default();
        let watcher = thread::spawn({
            let (device, seen) = (device.clone(), seen.clone());
            move || {
                while !seen.is_over.load(Ordering::Relaxed) {
                    seen.look(&device);
                    thread::yield_now();
                }
            }
        });
        Self {
            device: device.clone(),
            seen,
            watcher: Some(watcher),
        }
    }
}

impl Counter for DeviceMemory {
    fn in_use(&self) -> u64 {
        self.seen.look(&self.device)
    }

    fn peak(&self) -> Peak {
        self.in_use();
        Peak {
            in_use: self.seen.in_use.load(Ordering::Relaxed),
            reserved: Some(self.seen.reserved.load(Ordering::Relaxed)),
        }
    }

    fn reset_peak(&self) {
        self.seen.in_use.store(0, Ordering::Relaxed);
        self.seen.reserved.store(0, Ordering::Relaxed);
        self.in_use();
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        // If it has panicked, so has the training.
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}

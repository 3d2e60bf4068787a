//! Bytes of a GPU. Burn 0.22 tells those in use now, and counts no peak.

use benchmarks::measure::Counter;
use benchmarks::results::Pool;
use burn_0_22::backend::DispatchDevice;
use burn_0_22::tensor::Device;
use burn_cubecl::cubecl::{MemoryPoolKind, MemoryPoolReport, MemoryReport, MemoryScope};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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
    most: Mutex<Most>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Most {
    reserved: u64,
    /// When most was in use.
    report: Option<MemoryReport>,
}

impl Most {
    fn in_use(&self) -> u64 {
        let report = self.report.as_ref();
        report.map_or(0, |report| report.usage().bytes_in_use)
    }
}

impl Seen {
    /// Notes what is in use now; the bytes.
    fn look(&self, device: &Device) -> u64 {
        let DispatchDevice::Cube(device) = device.as_dispatch() else {
            unreachable!("it is a GPU");
        };
        let report = device.client().memory_report(MemoryScope::Device);
        let usage = report.usage();
        let mut most = self.most.lock().expect("nobody panics with it");
        most.reserved = most.reserved.max(usage.bytes_reserved);
        if most.report.is_none() || usage.bytes_in_use > most.in_use() {
            most.report = Some(report);
        }
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
        // Runs the operations that fusion has queued.
        self.device.memory_pool_usage();
        self.seen.look(&self.device)
    }

    fn peak(&self) -> Peak {
        self.in_use();
        let most = self.seen.most.lock().expect("nobody panics with it");
        Peak {
            in_use: most.in_use(),
            reserved: Some(most.reserved),
        }
    }

    fn reset_peak(&self) {
        *self.seen.most.lock().expect("nobody panics with it") = Most::default();
        self.in_use();
    }

    fn pools(&self) -> Vec<Pool> {
        let most = self.seen.most.lock().expect("nobody panics with it");
        most.report.as_ref().map(pools).unwrap_or_default()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        // If it has panicked, so has the training.
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}

/// The pools that hold something, thread by thread.
fn pools(report: &MemoryReport) -> Vec<Pool> {
    let mut pools = Vec::new();
    for stream in &report.streams {
        let auxiliary = stream.auxiliary.iter();
        let auxiliary = auxiliary.map(|it| (Some(it.name.as_str()), &it.pools));
        for (name, all) in [(None, &stream.pools)].into_iter().chain(auxiliary) {
            let each = all.dynamic.iter().chain([&all.persistent, &all.dedicated]);
            let each = each.filter(|pool| pool.usage.bytes_reserved > 0);
            pools.extend(each.map(|of| pool(name, of)));
        }
    }
    pools
}

fn pool(name: Option<&str>, of: &MemoryPoolReport) -> Pool {
    let (kind, page_bytes) = match of.kind {
        MemoryPoolKind::Sliced {
            page_size,
            max_slice_size,
        } if max_slice_size < page_size => ("small tensors", Some(page_size)),
        // Made before a larger tensor came, and held by one that lives on.
        MemoryPoolKind::Sliced { page_size, .. } => ("smaller pages", Some(page_size)),
        MemoryPoolKind::Adaptive { page_size, .. } => ("shared pages", Some(page_size)),
        MemoryPoolKind::Exclusive { .. } | MemoryPoolKind::Direct => ("own pages", None),
        MemoryPoolKind::Persistent => ("weights' sizes", None),
    };
    Pool {
        name: name.unwrap_or(kind).to_string(),
        page_bytes,
        pages: of.pages,
        in_use_bytes: of.usage.bytes_in_use,
        reserved_bytes: of.usage.bytes_reserved,
    }
}

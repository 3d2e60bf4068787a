//! The memory of a device, as programs ask for it.

use std::{
    fmt,
    sync::{Arc, MutexGuard},
};

use burn::tensor::{Device, backend::ExecutionError};
use cubecl::{Runtime, client::ComputeClient};

use crate::{
    backend::MeteredBackend,
    meter::{Meter, Peak, Usage},
    runtime::MeteredRuntime,
};

/// The memory of a device, on a [metered backend](MeteredBackend).
///
/// Clones share their counts. Call it from the thread that computes: Burn queues operations by
/// thread, and those of the calling thread are run first.
#[derive(Clone)]
pub struct DeviceMemory(Arc<dyn Counted>);

impl DeviceMemory {
    /// The memory of the tensors of `B` on `device`, of all threads together.
    pub fn of<B: MeteredBackend>(device: &Device<B>) -> Self {
        let settled = device.clone();
        Self(Arc::new(Settled::<B::Metered> {
            client: B::Metered::client(device),
            settle: Box::new(move || B::sync(&settled)),
        }))
    }

    /// The bytes in use and reserved now.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn usage(&self) -> Usage {
        self.0.read();
        self.0.meter().last()
    }

    /// The most that was in use and reserved since [`reset_peak`](Self::reset_peak), or since the
    /// backend was first used.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn peak(&self) -> Peak {
        self.0.read();
        self.0.meter().peak()
    }

    /// Forgets the peak until now.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn reset_peak(&self) {
        self.0.read();
        self.0.meter().reset();
    }

    /// Gives memory that the calling thread has reserved and does not use back to the device.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn cleanup(&self) {
        self.0.cleanup();
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").finish_non_exhaustive()
    }
}

/// The device's accounting, whatever its runtime.
trait Counted: Send + Sync {
    /// Runs queued operations, and lets the meter read the device.
    fn read(&self);

    fn meter(&self) -> MutexGuard<'_, Meter>;

    fn cleanup(&self);
}

struct Settled<R: Runtime> {
    client: ComputeClient<R>,
    /// Runs the operations that Burn has queued.
    settle: Box<dyn Fn() -> Result<(), ExecutionError> + Send + Sync>,
}

impl<R: MeteredRuntime> Counted for Settled<R> {
    fn read(&self) {
        let settled = (self.settle)().map_err(|error| error.to_string());
        let read = settled.and_then(|()| {
            let usage = self.client.memory_usage();
            usage.map_err(|error| error.to_string())
        });
        if let Err(error) = read {
            panic!("the device has failed, so that its memory cannot be read: {error}");
        }
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        R::meter(&self.client)
    }

    fn cleanup(&self) {
        self.read();
        self.client.memory_cleanup();
    }
}

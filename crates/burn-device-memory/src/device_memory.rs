//! What a program asks.

use std::{
    fmt,
    sync::{Arc, MutexGuard},
};

use burn::tensor::{Device, backend::ExecutionError};
use cubecl::{Runtime, client::ComputeClient};

use crate::{MeteredBackend, meter::Meter, runtime::MeteredRuntime};

/// What a device has in use and reserved, in bytes, as its own accounting has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What tensors hold.
    pub in_use: u64,
    /// What is taken from the device, for tensors that are and for tensors to come.
    pub reserved: u64,
    /// What alignment adds to the tensors; not part of `in_use`.
    pub padding: u64,
    /// Number of allocations in use.
    pub allocations: u64,
}

/// The most that a device had in use and reserved, in bytes.
///
/// What fragmentation costs is the difference; neither need have been at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// What tensors held: exact at every allocation.
    pub in_use: u64,
    /// What was taken from the device. Exact for cubecl's default pools, which give memory back
    /// only when told to.
    pub reserved: u64,
}

/// The memory of a device, on a [metered backend](MeteredBackend).
///
/// Clones share what they count. Call it from the thread that computes: the operations that Burn
/// has queued are those of the calling thread, and are run first.
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

    /// What is in use and reserved now.
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

    /// Gives back to the device what is reserved by the calling thread and not in use.
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
    /// Runs what is queued, and has the meter read the device.
    fn read(&self);

    fn meter(&self) -> MutexGuard<'_, Meter>;

    fn cleanup(&self);
}

struct Settled<R: Runtime> {
    client: ComputeClient<R>,
    /// Runs what Burn has queued.
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

//! How many bytes the allocator or the device has in use.

/// A count of the bytes in use by the allocator or the device, with which a recording is compared.
///
/// On the CPU, tensors are on the heap: use a counting global allocator, such as that of the crate
/// `peak_alloc`. On a GPU, use `DeviceMemory` of `burn-gradient-release-device-memory`, with the feature
/// `device-memory`.
pub trait MemoryCounter: Send {
    /// Bytes in use now.
    fn in_use(&mut self) -> u64;

    /// The most bytes in use at once since this was last called.
    fn take_peak(&mut self) -> u64;

    /// Whether it counts the heap, and with it the memory of the recorder, which the recording
    /// leaves out.
    fn counts_heap(&self) -> bool;
}

/// When a [`MemoryCounter`] is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// After every operation and every release of memory. For a counter that answers at once: on a
    /// GPU every answer waits for the device.
    EveryEvent,
    /// Where a phase begins or ends: forward, backward, the step of each parameter.
    EveryPhase,
}

/// Waits for the device.
#[cfg(feature = "device-memory")]
impl MemoryCounter for burn_gradient_release_device_memory::DeviceMemory {
    fn in_use(&mut self) -> u64 {
        self.usage().in_use
    }

    fn take_peak(&mut self) -> u64 {
        let peak = self.peak().in_use;
        self.reset_peak();
        peak
    }

    fn counts_heap(&self) -> bool {
        false
    }
}

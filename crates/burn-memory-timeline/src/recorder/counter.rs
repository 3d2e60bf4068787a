//! Who knows how many bytes are in use, whoever holds them.

/// The allocator's or the device's own number, which a recording is held against.
///
/// On the CPU tensors lie on the heap, which a counting global allocator sees, such as that of the
/// crate `peak_alloc`. On a GPU this is `DeviceMemory` of `burn-device-memory`, with the feature
/// `device-memory`.
pub trait MemoryCounter: Send {
    /// Bytes in use now.
    fn in_use(&mut self) -> u64;

    /// The most bytes in use at once since this was last called.
    fn take_peak(&mut self) -> u64;

    /// Whether it counts the heap, so that what the recorder itself takes there is in the numbers.
    /// It is left out of the recording.
    fn counts_heap(&self) -> bool;
}

/// How often a [`MemoryCounter`] is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// After every operation and whenever memory is let go of. For a counter that answers at once:
    /// on a GPU every answer waits for the device.
    EveryEvent,
    /// Where a phase begins or ends: forward, backward, the step of each parameter.
    EveryPhase,
}

/// The device is waited for, and its peak begun anew.
#[cfg(feature = "device-memory")]
impl MemoryCounter for burn_device_memory::DeviceMemory {
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

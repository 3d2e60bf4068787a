//! Bytes on the device, by its own accounting.

mod meter;
mod one_pass;
pub(super) mod training;

use burn::tensor::backend::BackendTypes;
use burn_gradient_release_device_memory::DeviceMemory;

use super::{ELEMENT_WISE, MATRICES, Metered};
use crate::harness::{Plain, Release, turn};

/// Plain Burn, the reference.
pub(super) type P = Plain<Metered>;
/// With release.
pub(super) type R = Release<Metered>;
/// The device of all of them.
pub(super) type Device = <Metered as BackendTypes>::Device;

/// The memory of the device, which is this test's until its thread ends: no other is on it.
pub(super) fn memory() -> DeviceMemory {
    turn::take::<Metered>();
    DeviceMemory::of::<Metered>(&Device::default())
}

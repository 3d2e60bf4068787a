//! On a GPU, without fusion.

use burn::tensor::Device;
use burn_gradient_release_device_memory::DeviceMemory;
use burn_gradient_release_timeline::MemoryCounter;

use super::Metered;
use crate::harness::prelude::*;
use crate::timeline::{Place, holds};

struct OnTheDevice;

impl Place for OnTheDevice {
    type Below = Metered;

    fn counter() -> impl MemoryCounter + 'static {
        DeviceMemory::of::<Metered>(&Device::<Metered>::default())
    }
}

#[test]
fn an_mlp_adds_up() {
    turn::take::<Metered>();
    holds::<Mlp, OnTheDevice>();
}

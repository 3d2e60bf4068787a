//! Opens the device of a run.
//!
//! Burn opens a device at its first use, and panics if it cannot. So the first use is here.

use crate::settings::DeviceKind;
use anyhow::{Result, anyhow, bail};
use burn::tensor::{Device, Tensor};
use std::panic;

/// The device, without autodiff.
///
/// # Errors
///
/// This build or this machine does not have it.
pub fn open(kind: DeviceKind) -> Result<Device> {
    // The message of a panic is part of the error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let opened = panic::catch_unwind(|| -> Result<Device> {
        let device = of(kind)?;
        let two = Tensor::<1>::ones([1], &device) + 1.0;
        two.try_into_scalar::<f32>()?;
        Ok(device)
    });
    panic::set_hook(hook);
    opened.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("Burn panicked");
        Err(anyhow!(
            "the device {kind} has no driver here, or does not work: {reason}"
        ))
    })
}

fn of(kind: DeviceKind) -> Result<Device> {
    Ok(match kind {
        #[cfg(feature = "flex")]
        DeviceKind::Cpu => Device::flex(),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => of_this_process(
            burn::tensor::DeviceType::Wgpu,
            Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        ),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => of_this_process(
            burn::tensor::DeviceType::Cuda,
            Device::cuda(burn::tensor::DeviceIndex::Default),
        ),
        #[allow(unreachable_patterns)] // With every feature on, no device remains.
        _ => {
            let feature = match kind {
                DeviceKind::Cpu => "flex",
                DeviceKind::Wgpu => "wgpu",
                DeviceKind::Cuda => "cuda",
            };
            bail!(
                "the device {kind} is not compiled in: build with `cargo run --release -p vit \
                 --features {feature}`"
            )
        }
    })
}

/// Of several processes on a machine, each has the device with its number.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn of_this_process(kind: burn::tensor::DeviceType, first: Device) -> Device {
    let Some(rank) = vit_common::parallel::local_rank() else {
        return first;
    };
    let devices = Device::enumerate(kind).into_vec();
    match devices.len() {
        0 | 1 => first,
        count => devices[rank % count].clone(),
    }
}

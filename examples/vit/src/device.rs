//! Opens the device of a run.
//!
//! Burn opens a device at its first use, and panics if it cannot. So the first use is here.

use crate::config::DeviceKind;
use anyhow::{Result, bail};
use burn::tensor::{Device, Tensor};
use std::panic;

/// An error in one line if this build does not have the device.
pub fn require(kind: DeviceKind) -> Result<()> {
    if !kind.is_compiled_in() {
        bail!(
            "the device {kind} is not compiled in: build with `cargo run --release -p vit \
             --features {}`",
            kind.feature()
        );
    }
    Ok(())
}

/// The device, without autodiff.
///
/// # Errors
///
/// This build or this machine does not have it; the error says what to do.
pub fn open(kind: DeviceKind) -> Result<Device> {
    require(kind)?;
    let missing = match kind {
        DeviceKind::Cpu => "Burn's CPU backend",
        DeviceKind::Wgpu => {
            "a graphics driver; install the one of the GPU, or one in software (Debian's \
             mesa-vulkan-drivers)"
        }
        DeviceKind::Cuda => {
            "NVIDIA's driver and the CUDA toolkit; install them, or set CUDA_PATH and LD_LIBRARY_PATH"
        }
    };
    match opened(kind) {
        Ok(device) => Ok(device),
        Err(reason) => bail!(
            "the device {kind} cannot be used here, as it needs {missing}, or choose another \
             --device: {reason}"
        ),
    }
}

/// The device after its first operation; the reason in one line if that fails.
fn opened(kind: DeviceKind) -> Result<Device, String> {
    // The message of a panic is part of the error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let opened = panic::catch_unwind(|| {
        let device = of(kind);
        let two = Tensor::<1>::ones([1], &device) + 1.0;
        match two.try_into_scalar::<f32>() {
            Ok(_) => Ok(device),
            Err(error) => Err(error.to_string()),
        }
    });
    panic::set_hook(hook);
    opened.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("Burn panicked").to_string())
    })
}

fn of(kind: DeviceKind) -> Device {
    match kind {
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
        _ => panic!("the device {kind} is not compiled in"),
    }
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

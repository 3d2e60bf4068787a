//! Selects Burn's types by the names on the command line.

use crate::train::Train;
use anyhow::Result;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::prelude::DeviceOps;
use burn::tensor::Device;
use burn::tensor::backend::{Backend, DeviceId};
use burn_gradient_release::GradientRelease;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_device_memory::{DeviceMemory, MeteredBackend};
#[cfg(feature = "cuda")]
use burn_gradient_release_device_memory::{MeteredCuda, MeteredCudaUnfused};
#[cfg(feature = "wgpu")]
use burn_gradient_release_device_memory::{MeteredWgpu, MeteredWgpuUnfused};
use burn_gradient_release_optim::LeanBackend;
#[cfg(any(feature = "flex", feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_timeline::Recorded;
use vit_0_21::memory::Memory;
use vit_inputs::{BackendKind, Checkpointing, Mode, local_rank};

/// Trains with the types that the settings name, and counts the memory. If a memory timeline can be
/// recorded, the backend is wrapped for it.
pub(crate) fn run(train: Train<'_>, fusion: bool) -> Result<()> {
    let backend = train.run.settings.backend;
    match (backend, fusion) {
        #[cfg(feature = "flex")]
        (BackendKind::Flex, _) => on::<Recorded<burn::backend::Flex>>(train, |_| Memory::heap()),
        #[cfg(feature = "wgpu")]
        (BackendKind::Wgpu, true) => on::<MeteredWgpu>(train, metered::<MeteredWgpu>),
        #[cfg(feature = "wgpu")]
        (BackendKind::Wgpu, false) => {
            on::<Recorded<MeteredWgpuUnfused>>(train, metered::<MeteredWgpuUnfused>)
        }
        #[cfg(feature = "cuda")]
        (BackendKind::Cuda, true) => on::<MeteredCuda>(train, metered::<MeteredCuda>),
        #[cfg(feature = "cuda")]
        (BackendKind::Cuda, false) => {
            on::<Recorded<MeteredCudaUnfused>>(train, metered::<MeteredCudaUnfused>)
        }
        #[allow(unreachable_patterns)] // With every feature on, no backend remains.
        _ => Err(backend.not_compiled_in()),
    }
}

/// The memory of a GPU, on a metered backend.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn metered<B: MeteredBackend>(device: &Device<B>) -> Memory {
    Memory::Device(DeviceMemory::of::<B>(device))
}

/// Trains on this backend, in the mode and with the checkpointing of the settings.
fn on<B: LeanBackend>(train: Train<'_>, memory: fn(&Device<B>) -> Memory) -> Result<()> {
    let device = device_of_this_process::<B>();
    let memory = memory(&device);
    match train.run.settings.checkpointing {
        Checkpointing::Balanced => with::<B, BalancedCheckpointing>(train, device, memory),
        // The model recomputes its blocks, and the optimizer what is automatic: Burn's tape keeps
        // all that it is given.
        _ => with::<B, NoCheckpointing>(train, device, memory),
    }
}

fn with<B: LeanBackend, C: CheckpointStrategy>(
    train: Train<'_>,
    device: Device<B>,
    memory: Memory,
) -> Result<()> {
    match train.run.settings.mode {
        Mode::Plain => train.plain::<Autodiff<B, C>>(device, memory),
        Mode::Release => train.release::<GradientRelease<Autodiff<B, C>>>(device, memory),
    }
}

/// Of several processes on a machine, each has the device with its number.
fn device_of_this_process<B: Backend>() -> Device<B> {
    let device = Device::<B>::default();
    let DeviceId { type_id, index_id } = device.to_id();
    let devices = B::device_count(type_id);
    match local_rank() {
        Some(rank) if devices > 1 => {
            Device::<B>::from_id(DeviceId::new(type_id, index_id + (rank % devices) as u16))
        }
        _ => device,
    }
}

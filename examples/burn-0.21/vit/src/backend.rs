//! Selects Burn's types by the names on the command line.

use crate::config::{BackendKind, Checkpointing, Engine, Mode};
use crate::device;
use crate::memory::Memory;
use crate::mode::{Plain, Release};
use anyhow::{Result, bail};
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::prelude::DeviceOps;
use burn::tensor::Device;
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceId};
use burn_gradient_release::ReleaseBackend;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_device_memory::{DeviceMemory, MeteredBackend};
#[cfg(feature = "cuda")]
use burn_gradient_release_device_memory::{MeteredCuda, MeteredCudaUnfused};
#[cfg(feature = "wgpu")]
use burn_gradient_release_device_memory::{MeteredWgpu, MeteredWgpuUnfused};
use burn_gradient_release_optim::LeanBackend;
#[cfg(any(feature = "flex", feature = "wgpu", feature = "cuda"))]
use burn_gradient_release_timeline::Recorded;
use vit_common::parallel::local_rank;

/// Work that is generic over the backend.
pub trait Job {
    /// The result of the work.
    type Output;

    /// Does the work with plain Burn; `memory` counts the bytes of tensors, if the backend can.
    fn plain<B: AutodiffBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Self::Output>;

    /// Does the work with gradient release.
    fn release<B: ReleaseBackend<InnerBackend: LeanBackend>>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Self::Output>;
}

/// An error in one line if this build or this machine does not have the backend.
pub fn require(backend: BackendKind) -> Result<()> {
    if !backend.is_compiled_in() {
        bail!(
            "the backend {backend} is not compiled in: build with `cargo run --release -p vit-0-21 \
             --features {backend}`"
        );
    }
    device::require(backend)
}

/// Runs the job with the types that `engine` names, and counts its memory. If a memory timeline
/// can be recorded, the backend is wrapped for it.
///
/// # Panics
///
/// Burn panics without the device of the backend, which [`require`] checks.
pub fn run<J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => on::<Recorded<burn::backend::Flex>, J>(engine, job, heap),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu if engine.fusion => {
            on::<MeteredWgpu, J>(engine, job, metered::<MeteredWgpu>)
        }
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => {
            on::<Recorded<MeteredWgpuUnfused>, J>(engine, job, metered::<MeteredWgpuUnfused>)
        }
        #[cfg(feature = "cuda")]
        BackendKind::Cuda if engine.fusion => {
            on::<MeteredCuda, J>(engine, job, metered::<MeteredCuda>)
        }
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => {
            on::<Recorded<MeteredCudaUnfused>, J>(engine, job, metered::<MeteredCudaUnfused>)
        }
        #[allow(unreachable_patterns)] // With every feature on, no backend remains.
        backend => {
            drop(job);
            bail!("the backend {backend} is not compiled in")
        }
    }
}

/// An error in one line if the memory timeline of the backend cannot be recorded.
pub(crate) fn can_record(engine: &Engine) -> Result<()> {
    match engine.backend {
        BackendKind::Flex => Ok(()),
        BackendKind::Wgpu | BackendKind::Cuda if engine.fusion => bail!(
            "a memory timeline is recorded without fusion, which leaves no memory to an \
             operation until its block is run: add --no-fusion"
        ),
        BackendKind::Wgpu | BackendKind::Cuda => Ok(()),
    }
}

/// The memory of a backend whose tensors are on the heap.
#[cfg(feature = "flex")]
fn heap<D>(_device: &D) -> Option<Memory> {
    Some(Memory::Heap(crate::memory::Heap::start()))
}

/// The memory of a GPU, on a metered backend.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn metered<B: MeteredBackend>(device: &Device<B>) -> Option<Memory> {
    Some(Memory::Device(DeviceMemory::of::<B>(device)))
}

/// Runs the job on this backend, in the mode and with the checkpointing of `engine`.
fn on<B: LeanBackend, J: Job>(
    engine: &Engine,
    job: J,
    memory: impl FnOnce(&Device<B>) -> Option<Memory>,
) -> Result<J::Output> {
    let device = device_of_this_process::<B>();
    let memory = memory(&device);
    match engine.checkpointing {
        Checkpointing::Balanced => with::<B, BalancedCheckpointing, J>(engine, job, device, memory),
        // The model recomputes its blocks, and the optimizer what is automatic: Burn's tape keeps
        // all that it is given.
        _ => with::<B, NoCheckpointing, J>(engine, job, device, memory),
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

fn with<B: LeanBackend, C: CheckpointStrategy, J: Job>(
    engine: &Engine,
    job: J,
    device: Device<B>,
    memory: Option<Memory>,
) -> Result<J::Output> {
    match engine.mode {
        Mode::Plain => job.plain::<Plain<B, C>>(device, memory),
        Mode::Release => job.release::<Release<B, C>>(device, memory),
    }
}

//! From the names on the command line to the types that Burn wants.

use crate::config::{BackendKind, Checkpointing, Engine, Mode};
use crate::device;
use crate::memory::{Heap, Memory};
use crate::mode::{Plain, Release};
use anyhow::{Result, bail};
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::tensor::Device;
use burn::tensor::backend::{AutodiffBackend, Backend};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn_device_memory::{DeviceMemory, MeteredBackend};
#[cfg(feature = "cuda")]
use burn_device_memory::{MeteredCuda, MeteredCudaUnfused};
#[cfg(feature = "wgpu")]
use burn_device_memory::{MeteredWgpu, MeteredWgpuUnfused};
use burn_gradient_release::ReleaseBackend;
#[cfg(any(feature = "flex", feature = "wgpu", feature = "cuda"))]
use burn_memory_timeline::Recorded;

/// Work that is the same on every backend.
pub trait Job {
    /// What comes of it.
    type Output;

    /// Does the work with Burn as it comes; `memory` counts the tensors, if anybody does.
    fn plain<B: AutodiffBackend>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Self::Output>;

    /// Does the work with gradient release.
    fn release<B: ReleaseBackend>(
        self,
        device: Device<B>,
        memory: Option<Memory>,
    ) -> Result<Self::Output>;
}

/// One clear line for a backend that this build or this machine does not have.
pub fn require(backend: BackendKind) -> Result<()> {
    if !backend.is_compiled_in() {
        bail!(
            "the backend {backend} is not compiled in: build with `cargo run --release -p vit \
             --features {backend}`"
        );
    }
    device::require(backend)
}

/// Runs the job with the types that `engine` names, and its memory counted. Where a memory timeline
/// [can be recorded](can_record), the backend is one that can be.
///
/// Without the device that the backend computes on, which [`require`] asks for, Burn panics.
pub fn run<J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    match engine.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => on::<Recorded<burn::backend::Flex>, J>(engine, job, heap),
        #[cfg(feature = "ndarray")]
        BackendKind::NdArray => on::<burn::backend::NdArray, J>(engine, job, heap),
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
        #[allow(unreachable_patterns)] // With every feature on, nothing is left.
        backend => {
            drop(job);
            bail!("the backend {backend} is not compiled in")
        }
    }
}

/// One clear line for a backend whose memory timeline cannot be recorded.
pub fn can_record(engine: &Engine) -> Result<()> {
    match engine.backend {
        BackendKind::Flex => Ok(()),
        BackendKind::NdArray => bail!("ndarray cannot be recorded: use flex"),
        BackendKind::Wgpu | BackendKind::Cuda if engine.fusion => bail!(
            "a memory timeline is recorded without fusion, which leaves no memory to an \
             operation until its block is run: add --no-fusion"
        ),
        BackendKind::Wgpu | BackendKind::Cuda => Ok(()),
    }
}

/// The memory of a backend whose tensors are on the heap.
pub fn heap<D>(_device: &D) -> Option<Memory> {
    Some(Memory::Heap(Heap::start()))
}

/// The memory of a GPU, on a backend that knows it.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub fn metered<B: MeteredBackend>(device: &Device<B>) -> Option<Memory> {
    Some(Memory::Device(DeviceMemory::of::<B>(device)))
}

/// Runs the job on this backend, in the mode and with the checkpointing of `engine`.
pub fn on<B: Backend, J: Job>(
    engine: &Engine,
    job: J,
    memory: impl FnOnce(&Device<B>) -> Option<Memory>,
) -> Result<J::Output> {
    let device = Device::<B>::default();
    let memory = memory(&device);
    match engine.checkpointing {
        Checkpointing::None => with::<B, NoCheckpointing, J>(engine, job, device, memory),
        Checkpointing::Balanced => with::<B, BalancedCheckpointing, J>(engine, job, device, memory),
    }
}

fn with<B: Backend, C: CheckpointStrategy, J: Job>(
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

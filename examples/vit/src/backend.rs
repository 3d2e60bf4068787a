//! From the names on the command line to the types that Burn wants.

use crate::config::{BackendKind, Checkpointing, Engine, Mode};
use crate::mode::{Plain, Release};
use anyhow::{Result, bail};
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::tensor::Device;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::ReleaseBackend;

/// Work that is the same on every backend.
pub trait Job {
    /// What comes of it.
    type Output;

    /// Does the work with Burn as it comes.
    fn plain<B: AutodiffBackend>(self, device: Device<B>) -> Result<Self::Output>;

    /// Does the work with gradient release.
    fn release<B: ReleaseBackend>(self, device: Device<B>) -> Result<Self::Output>;
}

/// One clear line for a backend that this build does not have.
pub fn require(backend: BackendKind) -> Result<()> {
    if !backend.is_compiled_in() {
        bail!(
            "the backend {backend} is not compiled in: build with `cargo run --release -p vit \
             --features {backend}`"
        );
    }
    Ok(())
}

/// Runs the job with the types that `engine` names.
pub fn run<J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    require(engine.backend)?;
    match engine.backend {
        #[cfg(feature = "flex")]
        BackendKind::Flex => on::<burn::backend::Flex, J>(engine, job),
        #[cfg(feature = "ndarray")]
        BackendKind::NdArray => on::<burn::backend::NdArray, J>(engine, job),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => on::<burn::backend::Wgpu, J>(engine, job),
        #[cfg(feature = "cuda")]
        BackendKind::Cuda => on::<burn::backend::Cuda, J>(engine, job),
        #[allow(unreachable_patterns)] // With every feature on, nothing is left.
        backend => {
            drop(job);
            bail!("the backend {backend} is not compiled in")
        }
    }
}

#[allow(dead_code)] // In a build without any backend.
fn on<B: Backend, J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    match engine.checkpointing {
        Checkpointing::None => with::<B, NoCheckpointing, J>(engine, job),
        Checkpointing::Balanced => with::<B, BalancedCheckpointing, J>(engine, job),
    }
}

fn with<B: Backend, C: CheckpointStrategy, J: Job>(engine: &Engine, job: J) -> Result<J::Output> {
    let device = Device::<B>::default();
    match engine.mode {
        Mode::Plain => job.plain::<Plain<B, C>>(device),
        Mode::Release | Mode::Unarmed | Mode::Ideal => job.release::<Release<B, C>>(device),
    }
}

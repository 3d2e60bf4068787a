//! What the workspace promises, one module per promise. The reference is always plain Burn.
//!
//! `../../README.md` says how they are laid out, and how one is added.

// A backend is a type: the same tests on another one are another module.
#![allow(clippy::duplicate_mod)]

mod harness;

mod accumulator;
mod checkpoints;
mod clipping;
mod commands;
mod custom_operation;
mod edge_cases;
mod equivalence;
mod groups;
mod lean_optim;
mod learner;
mod pages;
mod property;
mod recompute;
mod reference;
mod sequences;
mod storeys;
mod timeline;

#[cfg(has_wgpu)]
mod wgpu;
#[cfg(not(has_wgpu))]
mod wgpu {
    include!(concat!(env!("OUT_DIR"), "/wgpu.rs"));
}

#[cfg(has_cuda)]
mod cuda;
#[cfg(not(has_cuda))]
mod cuda {
    include!(concat!(env!("OUT_DIR"), "/cuda.rs"));
}

#[cfg(has_mpi)]
mod mpi;
#[cfg(not(has_mpi))]
mod mpi {
    include!(concat!(env!("OUT_DIR"), "/mpi.rs"));
}

/// Backend of `edge_cases`, unless they are mounted elsewhere.
use burn::backend::Flex as Inner;

/// Counts every allocation of the process; only [`harness::memory`] reads it.
#[global_allocator]
static ALLOCATIONS: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

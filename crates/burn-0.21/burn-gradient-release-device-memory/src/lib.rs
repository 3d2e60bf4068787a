//! The exact peak of device memory for Burn 0.21 on wgpu and CUDA.
//!
//! cubecl, on which Burn's GPU backends are built, says how many bytes are in use *now*, but keeps
//! no peak. [`Metered`] is a runtime around a runtime of cubecl that asks the device's own
//! accounting after every allocation that could have made a new peak: memory grows nowhere else.
//! Fused or not, whatever a kernel, a fused block or an autotuning run allocates for a moment is
//! counted.
//!
//! Swap the backend, keep everything else:
//!
//! ```ignore
//! use burn_gradient_release_device_memory::{DeviceMemory, MeteredWgpu};
//!
//! type B = Autodiff<MeteredWgpu>; // was: Autodiff<Wgpu>
//!
//! let memory = DeviceMemory::of::<MeteredWgpu>(&device);
//! memory.reset_peak();
//! // one training step
//! println!("{} bytes in use, {} reserved", memory.peak().in_use, memory.peak().reserved);
//! ```
//!
//! A program has one or the other: started while the ordinary backend works on the same device,
//! cubecl 0.10 can wait for ever. If it must have both, it starts both before either works
//! (`B::sync`).
//!
//! Counting takes time on the thread that feeds the device. Measure bytes on a metered backend, and
//! seconds on the ordinary one.
//!
//! # What is counted
//!
//! The memory of tensors. Beside it wgpu keeps uniforms and staging buffers, CUDA its context and
//! compiled kernels; neither is in cubecl's accounting. A CUDA kernel with very many arguments
//! takes a buffer for them during its launch, which is seen at the next allocation, or not at all:
//! kilobytes.
//!
//! Handles are freed by the thread that computes, allocations made by the thread that feeds the
//! device. Where the first runs ahead of the second, memory that it has let go of by then is reused
//! a little earlier than in the order of the program, so that two runs of the same program may
//! differ. Both peaks are true.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod device_memory;
mod meter;
mod runtime;
mod server;

pub use backend::MeteredBackend;
#[cfg(feature = "cuda")]
pub use backend::{MeteredCuda, MeteredCudaUnfused};
#[cfg(feature = "wgpu")]
pub use backend::{MeteredWgpu, MeteredWgpuUnfused};
pub use device_memory::DeviceMemory;
pub use meter::{Peak, Usage};
pub use runtime::{MeterableRuntime, Metered, MeteredRuntime};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

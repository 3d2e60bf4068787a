//! The promises on CUDA.

use burn::backend::Cuda as Fused;
use burn_cubecl::CubeBackend;
use burn_gradient_release_device_memory::{
    MeteredCuda as MeteredFused, MeteredCudaUnfused as MeteredUnfused,
};
use cubecl::cuda::CudaRuntime;

type Unfused = CubeBackend<CudaRuntime, f32, i32, u8>;

#[path = "../gpu/fused.rs"]
mod fused;
#[path = "../gpu/unfused.rs"]
mod unfused;

//! The promises on wgpu: on a machine without a GPU, on a driver that draws with the processor.

use burn::backend::Wgpu as Fused;
use burn::backend::wgpu::{CubeBackend, WgpuRuntime};
use burn_gradient_release_device_memory::{
    MeteredWgpu as MeteredFused, MeteredWgpuUnfused as MeteredUnfused,
};

type Unfused = CubeBackend<WgpuRuntime, f32, i32, u32>;

#[path = "../gpu/fused.rs"]
mod fused;
#[path = "../gpu/unfused.rs"]
mod unfused;

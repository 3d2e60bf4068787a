//! The promises on wgpu: on a machine without a GPU, on a driver that draws with the processor.

mod fused;
mod unfused;

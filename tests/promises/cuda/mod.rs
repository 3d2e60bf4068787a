//! The promises on CUDA.

mod fused;
mod unfused;

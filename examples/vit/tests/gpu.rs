//! Training on a GPU, and the errors on a machine without one.
//!
//! Tests that need an adapter count as ignored without one. Only a harness other than libtest's can
//! decide that at run time.

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

#[cfg(feature = "wgpu")]
#[path = "gpu/wgpu.rs"]
mod wgpu;

#[cfg(feature = "cuda")]
#[path = "gpu/cuda.rs"]
mod cuda;

fn main() -> ExitCode {
    let backends: &[fn() -> Vec<Trial>] = &[
        #[cfg(feature = "wgpu")]
        wgpu::tests,
        #[cfg(feature = "cuda")]
        cuda::tests,
    ];
    let tests = backends.iter().flat_map(|tests| tests()).collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

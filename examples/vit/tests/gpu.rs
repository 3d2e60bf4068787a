//! Training on a GPU, and what is said where there is none.
//!
//! Without an adapter the tests that want one count as ignored: whether there is one is known only
//! when they run, which is why this harness is not libtest's.

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

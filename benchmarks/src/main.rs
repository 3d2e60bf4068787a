//! The program, with its workers for both versions of Burn.

mod burn_0_21;
#[cfg(any(feature = "flex", feature = "wgpu", feature = "cuda"))]
mod burn_0_22;

use anyhow::{Result, bail};
use benchmarks::measure::Spec;
use benchmarks::results::Measured;
use benchmarks::subject::{BurnVersion, Subject};
use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    benchmarks::cli::main(worker)
}

/// Measures a run, as a measuring process.
fn worker(spec: &Spec) -> Result<Measured> {
    let Subject::Burn(run) = &spec.subject else {
        bail!("PyTorch is measured by Python");
    };
    match run.burn {
        BurnVersion::V0_21 => burn_0_21::run(spec, run),
        #[cfg(any(feature = "flex", feature = "wgpu", feature = "cuda"))]
        BurnVersion::V0_22 => burn_0_22::run(spec, run),
        #[cfg(not(any(feature = "flex", feature = "wgpu", feature = "cuda")))]
        BurnVersion::V0_22 => bail!("this build has no backend: switch on a feature, such as flex"),
    }
}

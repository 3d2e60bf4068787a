//! The command line of the benchmarks.

use anyhow::{Context, Result};
use benchmarks::measure;
use benchmarks::results::BurnVersion;
use benchmarks::shape::Shape;
use benchmarks::spec::Spec;
use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    benchmarks::cli::main(child)
}

/// Measures the run `spec`, as a measuring process; returns the result in one line.
fn child(spec: &str) -> Result<String> {
    let spec: Spec = serde_json::from_str(spec).context("not a run to measure")?;
    let measured = match spec.burn {
        BurnVersion::V0_21 => match &spec.model {
            Shape::Vit(config) => measure::run(&spec, config)?,
            Shape::Gpt(config) => measure::run(&spec, config)?,
            Shape::Encoder(config) => measure::run(&spec, config)?,
        },
        #[cfg(feature = "flex")]
        BurnVersion::V0_22 => benchmarks::burn_0_22::run(&spec)?,
        #[cfg(not(feature = "flex"))]
        BurnVersion::V0_22 => {
            anyhow::bail!("this build has no Burn 0.22: switch on the feature flex")
        }
    };
    Ok(serde_json::to_string(&measured)?)
}

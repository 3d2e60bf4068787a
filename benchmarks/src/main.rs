//! The command line of the benchmarks.

use anyhow::{Context, Result};
use benchmarks::measure;
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
    let measured = match &spec.model {
        Shape::Vit(config) => measure::run(&spec, config)?,
        Shape::Gpt(config) => measure::run(&spec, config)?,
        Shape::Encoder(config) => measure::run(&spec, config)?,
    };
    Ok(serde_json::to_string(&measured)?)
}

//! The command line of the benchmarks.

use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    benchmarks::cli::main()
}

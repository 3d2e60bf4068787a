//! The command line of the vision transformer example.

use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    vit_0_21::run::main(|engine, train| vit_0_21::backend::run(engine, train))
}

//! The command line of the vision transformer example for Burn 0.22.

use burn_lean::timeline::Heap;
use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU keeps its tensors, and can record them.
#[global_allocator]
static ALLOCATOR: Heap<PeakAlloc> = Heap::from_allocator(PeakAlloc);

fn main() -> ExitCode {
    vit::run::main()
}

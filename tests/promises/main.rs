//! What the workspace promises, one module per promise. The reference is always plain Burn.

mod harness;

mod accumulator;
mod checkpoints;
mod completeness;
mod edge_cases;
mod equivalence;
mod learner;
mod property;

/// Counts every allocation of the process; only [`harness::memory`] reads it.
#[global_allocator]
static ALLOCATIONS: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

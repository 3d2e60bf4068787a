//! What the workspace promises, one module per promise. The reference is always plain Burn.

mod harness;

mod checkpoints;
mod completeness;
mod edge_cases;
mod equivalence;
mod property;

/// Counts every allocation of the process; only [`harness::memory`] reads it.
#[global_allocator]
static ALLOCATIONS: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

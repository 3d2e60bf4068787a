//! The vision transformer example: trains with Burn's learner, plainly or with gradient release.
//!
//! [`train`] shows what gradient release requires of a program, and [`backend`] what it requires of
//! the types; the rest is an ordinary Burn program.

#![forbid(unsafe_code)]

mod backend;
mod metrics;
mod optimizer;
mod run;
mod train;

use peak_alloc::PeakAlloc;
use std::process::ExitCode;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    run::main()
}

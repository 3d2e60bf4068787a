//! Handwritten digits with Burn's Learner, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/learner/src/{before,after}.rs`. Logs and checkpoints go to `artifacts/learner`.

mod after;
mod before;
mod data;
mod model;

use anyhow::{Result, ensure};
use peak_alloc::PeakAlloc;

use crate::model::weights;

const FOLDER: &str = "artifacts/learner";
const EPOCHS: usize = 2;

/// Counts the bytes on the heap, which is where the CPU keeps its tensors.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> Result<()> {
    let (before, plain) = (before::train()?, HEAP.peak_usage_as_mb());
    HEAP.reset_peak_usage();
    let (after, release) = (after::train()?, HEAP.peak_usage_as_mb());
    ensure!(
        weights(&before) == weights(&after),
        "the two programs reached different weights"
    );
    println!("peak: {plain:.2} MiB with plain Burn, {release:.2} MiB with gradient release");
    println!("the weights are the same, bit for bit");
    Ok(())
}

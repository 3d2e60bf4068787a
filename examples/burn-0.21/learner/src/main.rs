//! Handwritten digits with Burn's Learner, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/burn-0.21/learner/src/{before,after}.rs`. Logs and checkpoints go to
//! `artifacts/learner-0-21`.

mod after;
mod before;
mod data;
mod model;

use anyhow::{Result, ensure};
use peak_alloc::PeakAlloc;

use crate::model::weights;

const FOLDER: &str = "artifacts/learner-0-21";
const EPOCHS: usize = 2;

/// Counts the bytes on the heap, which is where the CPU keeps its tensors.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> Result<()> {
    let (before, plain) = with_peak(before::train);
    let (after, release) = with_peak(after::train);
    let (before, after) = (before?, after?);
    ensure!(
        weights(&before) == weights(&after),
        "the two programs reached different weights"
    );
    println!("peak: {plain:.2} MiB with plain Burn, {release:.2} MiB with gradient release");
    println!("the weights are the same, bit for bit");
    Ok(())
}

/// A training, and the peak of what it has taken, in MiB.
fn with_peak<T>(train: impl FnOnce() -> T) -> (T, f32) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let trained = train();
    let peak = HEAP.peak_usage() - before;
    (trained, peak as f32 / (1 << 20) as f32)
}

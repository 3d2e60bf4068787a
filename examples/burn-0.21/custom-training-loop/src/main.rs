//! A hand-written training loop on Burn, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release. Compare them
//! with `diff examples/burn-0.21/custom-training-loop/src/{before,after}.rs`.

mod after;
mod before;
mod model;

use peak_alloc::PeakAlloc;

/// Counts the bytes on the heap, which is where the CPU keeps its tensors.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() {
    let (before, plain) = with_peak(|| before::train(200));
    let (after, release) = with_peak(|| after::train(200));
    println!(
        "plain Burn:       final loss {:.6}, peak {plain:.2} MiB",
        before.loss
    );
    println!(
        "gradient release: final loss {:.6}, peak {release:.2} MiB",
        after.loss
    );
    assert!(
        before.weights() == after.weights(),
        "the two programs reached different weights"
    );
    println!("the weights are the same, bit for bit");
}

/// A training, and the peak of what it has taken, in MiB.
fn with_peak<T>(train: impl FnOnce() -> T) -> (T, f32) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let trained = train();
    let peak = HEAP.peak_usage() - before;
    (trained, peak as f32 / (1 << 20) as f32)
}

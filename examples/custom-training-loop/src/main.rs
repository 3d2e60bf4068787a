//! A hand-written training loop on Burn, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/custom-training-loop/src/{before,after}.rs`.

mod after;
mod before;
mod model;

use peak_alloc::PeakAlloc;

/// Counts the bytes on the heap, which is where the CPU keeps its tensors.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() {
    let (before, plain) = (before::train(200), HEAP.peak_usage_as_mb());
    HEAP.reset_peak_usage();
    let (after, release) = (after::train(200), HEAP.peak_usage_as_mb());
    println!(
        "plain Burn:       final loss {:.6}, peak {plain:.2} MiB",
        before.loss
    );
    println!(
        "gradient release: final loss {:.6}, peak {release:.2} MiB",
        after.loss
    );
    assert_eq!(before, after, "the two programs reached different weights");
    println!("the weights are the same, bit for bit");
}

//! The bytes of the process.

use peak_alloc::PeakAlloc;

#[cfg(feature = "rayon")]
use crate::harness::{flex, numbers};

#[global_allocator]
pub(crate) static HEAP: PeakAlloc = PeakAlloc;

/// The peak of a call, above what was in use before it.
pub(crate) fn peak_of<R>(run: impl FnOnce() -> R) -> (R, usize) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let result = run();
    (result, HEAP.peak_usage() - before)
}

/// `gemm` keeps a buffer of the size of a cache for each thread, from its first product on.
pub(crate) fn warm_threads() {
    #[cfg(feature = "rayon")]
    rayon::broadcast(|_| {
        let product = numbers::<2>([64, 64], 1, &flex()).matmul(numbers([64, 64], 2, &flex()));
        drop(product);
    });
}

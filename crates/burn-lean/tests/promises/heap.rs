//! The bytes of the process.

use peak_alloc::PeakAlloc;

#[global_allocator]
pub(crate) static HEAP: PeakAlloc = PeakAlloc;

/// The peak of a call, above what was in use before it.
pub(crate) fn peak_of<R>(run: impl FnOnce() -> R) -> (R, usize) {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let result = run();
    (result, HEAP.peak_usage() - before)
}

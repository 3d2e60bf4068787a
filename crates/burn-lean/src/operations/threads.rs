//! Chunks of a tensor on several threads. Flex itself runs an element-wise function on one thread.
//!
//! Results do not depend on the number of threads: the chunks are the same for any number, and
//! their sums are added in order.

use burn::tensor::Tensor;

/// Chunks that are computed at once have temporaries each.
#[cfg(feature = "rayon")]
const MOST: usize = 8;

/// How many chunks of a tensor are computed at once.
pub(super) fn threads<const D: usize>(tensor: &Tensor<D>) -> usize {
    #[cfg(feature = "rayon")]
    if crate::backend::is_on_flex(tensor) {
        return rayon::current_num_threads().min(MOST);
    }
    let _ = tensor;
    1
}

/// The results of `compute` for each item, in their order.
#[cfg(feature = "rayon")]
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    compute: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
    match items {
        [item] => vec![compute(item)],
        items => items.par_iter().map(&compute).collect(),
    }
}

#[cfg(all(feature = "flex", feature = "rayon"))]
pub(super) fn each<T: Send>(items: Vec<T>, compute: impl Fn(T) + Sync) {
    use rayon::iter::{IntoParallelIterator, ParallelIterator};
    match items.len() {
        // No other thread is woken.
        ..2 => items.into_iter().for_each(compute),
        _ => items.into_par_iter().for_each(&compute),
    }
}

#[cfg(all(feature = "flex", not(feature = "rayon")))]
pub(super) fn each<T>(items: Vec<T>, compute: impl Fn(T)) {
    items.into_iter().for_each(compute);
}

/// The results of `compute` for each item, in their order.
#[cfg(not(feature = "rayon"))]
pub(super) fn in_parallel<T, R>(items: &[T], compute: impl Fn(&T) -> R) -> Vec<R> {
    items.iter().map(compute).collect()
}

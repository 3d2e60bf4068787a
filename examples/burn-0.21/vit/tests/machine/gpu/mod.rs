//! Training on a GPU, and the errors on a machine without one.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "wgpu")]
mod wgpu;

use libtest_mimic::Trial;

pub(super) fn tests() -> Vec<Trial> {
    let backends: &[fn() -> Vec<Trial>] = &[
        #[cfg(feature = "wgpu")]
        wgpu::tests,
        #[cfg(feature = "cuda")]
        cuda::tests,
    ];
    backends.iter().flat_map(|tests| tests()).collect()
}

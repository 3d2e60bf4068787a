//! What burn-lean promises, one module per promise.
#![allow(dead_code, unused_imports, unused_macros)]

// mod accumulation;

mod adapters;

// mod clipping;

mod copies;

// #[cfg(feature = "data-parallel")] mod data_parallel;

mod edges;

// mod equality;

// #[cfg(feature = "wgpu")] mod gpu;

mod harness;

mod heap;

// mod layers;

// mod memory;

// mod misc;

// #[cfg(all(feature = "operations", feature = "optim"))] mod mixed_precision;

// mod modules;

// #[cfg(feature = "operations")] mod operations;

// #[cfg(feature = "optim")] mod optim;

// mod optimizers;

/// In place of the module of tests.
mod random_programs {
    pub(crate) struct Source(pub(crate) u64);

    impl Source {
        /// Below `bound`.
        pub(crate) fn next(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) % bound as u64) as usize
        }
    }

    pub(crate) fn variable(name: &str) -> Option<u64> {
        std::env::var(name).ok()?.parse().ok()
    }
}

// mod scopes;

mod small;

// mod threads;

// #[cfg(feature = "train")] mod train;
